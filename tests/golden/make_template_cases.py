#!/usr/bin/env python3
"""Writes template_cases.json: small templates, each of a construct, and the text that Jinja2 makes of them in the
environment that transformers renders chat templates in. Needs jinja2; run it in this folder."""
import datetime
import json

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = "2026-01-05T09:07:03"


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_generation"), [], [], body).set_lineno(line)

    def _generation(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromisoformat(NOW).strftime(f)
    return env


CONTEXT = {
    "strftime_now": NOW,
    "name": "Ada", "empty": "", "zero": 0, "one": 1, "pi": 3.25, "yes": True, "no": False, "nothing": None,
    "text": "  Hello, World  \n", "uni": "Grüße, 世界 👩‍🚀", "quote": "it's \"so\" <b>&\\\n\t\u0001",
    "list": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "nested": [[1, 2], [3, [4, 5]]],
    "d": {"b": 2, "a": 1, "C": [1, {"x": None}], "items": "shadow"}, "floats": [0.1, 1e16, 1e-5, 0.0001, 123456789.0, -0.0, 1.5e300, 100.0, 0.00123, 9007199254740993.0, 1e15, 123456789012345680.0, 5e-324, 0.30000000000000004],
    "users": [{"name": "Bo", "age": 30, "tags": ["x"], "active": True}, {"name": "al", "age": 25, "active": False},
              {"name": "Cy", "age": 30, "tags": [], "active": True}],
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}],
    "tree": [{"n": 1, "c": [{"n": 2, "c": []}, {"n": 3, "c": [{"n": 4, "c": []}]}]}],
}

# One a line; blocks of several lines stand between lines of "=====".
ONE_LINE = r"""
{{ name }}|{{ empty }}|{{ zero }}|{{ pi }}|{{ yes }}|{{ nothing }}|{{ missing }}
{{ list }} {{ d }} {{ nested }} {{ floats }}
{{ [quote, uni] }}
{{ (1,) }} {{ () }} {{ (1, 'a') }} {{ 1, 2 }} {{ {} }} {{ {'a': 1, "b": [none, true]} }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ (1 + 2) * 3 }} {{ +3 }} {{ - -3 }} {{ 1_000 }} {{ 0x1f }} {{ 0o17 }} {{ 0b101 }} {{ 1e3 }} {{ 1.5e-3 }} {{ 1_0.2_5 }}
{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ missing ~ [1] }} {{ 'ab' * 3 }} {{ [1] * 2 + [3] }} {{ (1, 2) + (3,) }} {{ 3 * 'x' }} {{ 'x' * -1 }}
{{ true + 1 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ [1, 2] == [1.0, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ none == missing }} {{ missing == gone }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }} {{ 3 >= 3.0 }} {{ 'é' > 'z' }}
{{ 1 in [1, 2] }} {{ 'b' in 'abc' }} {{ 'x' not in d }} {{ 'a' in d }} {{ '' in 'abc' }} {{ 1 in missing }} {{ not 1 in [2] }} {{ 2 in (1, 2) }} {{ 'k' in {'k': 1}.keys() }}
{{ yes and 'x' }} {{ no or 'y' }} {{ not yes }} {{ 0 or none }} {{ 1 and [] }} {{ not not 1 }} {{ no and missing.x }}
{{ 'a' if yes else 'b' }} {{ 'a' if no else 'b' }} [{{ 'a' if no }}] {{ 'a' if no else 'b' if no else 'c' }}
{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abc'.lstrip('ab') }}|{{ 'abc'.rstrip('bc') }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ' a b  c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }}
{{ 'a</think>b</think>c'.split('</think>')[-1] }} {{ 'abc'.partition('b') }} {{ 'abcb'.rpartition('b') }} {{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a\nb'.splitlines(true) }}
{{ name.upper() }} {{ name.lower() }} {{ 'hello wORLD-foo bar'.title() }} {{ 'hELLO'.capitalize() }} {{ 'aBc'.swapcase() }} {{ 'straße'.upper() }} {{ 'ΑΣ ΑΣΑ'.lower() }} {{ 'ﬁx'.capitalize() }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.find('c') }} {{ 'abc'.find('x') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.index('b') }} {{ 'aXbXc'.count('X') }} {{ 'abc'.count('') }}
{{ 'aaa'.replace('a', 'b') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }} {{ 'abc'.removeprefix('ab') }} {{ 'abc'.removesuffix('bc') }} {{ 'abc'.removeprefix('x') }}
{{ ', '.join(['a', 'b']) }} {{ '-'.join('abc') }} {{ '{} {1}'.replace('1', '') }} {{ '{0} {1} {0}'.format('a', 2) }} {{ '{x:>5}|{y:<5}|{y:^5}|{z:05d}'.format(x='a', y='b', z=42) }}
{{ '{:.2f} {:,} {:x} {:#x} {:e} {:%} {!r:>5} {{}}'.format(3.14159, 1234567, 255, 255, 12345.678, 0.25, 'a') }} {{ '{a[b]} {c[0]}'.format(a={'b': 1}, c=[7]) }} {{ '{:{w}}|'.format('a', w=4) }}
{{ '%s and %d and %5.2f|%-5s|%05d|%x|%r|%%' % ('a', 3, 3.14159, 'b', 42, 255, 'q') }} {{ '%s' % 'x' }} {{ '%(a)s' % {'a': 1} }} {{ '%s' % [1, 2] }} {{ '%+d % d %e %g' % (1, 2, 12345.678, 0.0001) }} {{ '%5s|%.2s' % ('ab', 'abc') }}
{{ 'abc'.ljust(5) }}| {{ 'abc'.rjust(5, '*') }} {{ 'ab'.center(5, '-') }} {{ 'abc'.center(6, '-') }} {{ '-42'.zfill(5) }} {{ 'a1'.isalnum() }} {{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ ''.isdigit() }}
{{ uni[0] }} {{ uni[2] }} {{ uni[-1] }} {{ uni[7:9] }} {{ uni[:5] }} {{ uni[::-1] }} {{ uni | length }} {{ 'abc'[5:] }} {{ 'abc'[-2:] }} {{ 'abc'[:-1] }} {{ 'abcdef'[1:5:2] }} [{{ 'abc'[9] }}]
{{ list[0] }} {{ list[-1] }} {{ list[1:] }} {{ list[::-1] }} {{ list[:2] }} {{ list[5] }} {{ list.0 }} {{ nested[1][1][0] }} {{ list[::2] }} {{ (1, 2, 3)[1:] }} {{ range(5)[2] }}
{{ d.a }} {{ d['b'] }} {{ d.C[1].x }} {{ d.get('a') }} {{ d.get('z') }} {{ d.get('z', 'def') }} {{ d['items'] }} {{ d.missing }} {{ d.missing is defined }} {{ d['get'] is defined }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {{ d.keys() }} {{ d.values() }} {{ d.items() }} {{ d | list }} {{ d.keys() | list | length }} {{ d.items() | length }} {{ d.copy() == d }}
{{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }} {{ (1, 1).count(1) }}
{{ missing is defined }} {{ name is defined }} {{ missing is undefined }} {{ nothing is none }} {{ name is not none }} {{ name is string }} {{ d is mapping }} {{ list is mapping }} {{ name is iterable }} {{ one is iterable }} {{ list is sequence }} {{ d is sequence }} {{ name is sequence }}
{{ one is number }} {{ yes is number }} {{ pi is float }} {{ one is integer }} {{ yes is integer }} {{ yes is boolean }} {{ yes is true }} {{ no is false }} {{ one is true }} {{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 'ab' is lower }} {{ 'AB' is upper }}
{{ 1 is eq 1 }} {{ 1 is equalto(1) }} {{ 2 is gt 1 }} {{ 2 is lessthan 1 }} {{ 2 is ge 2 }} {{ 1 is ne 2 }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ nothing is sameas none }} {{ range is callable }} {{ 'trim' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }}
{{ list | length }} {{ text | trim }}| {{ 'xax' | trim('x') }} {{ name | upper }} {{ name | lower }} {{ 'hello there-you (x)' | title }} {{ 'hELLO' | capitalize }} {{ 'aXb' | replace('X', '-') }} {{ 5 | replace(5, 6) }} {{ words | count }}
{{ words | join(', ') }} {{ list | join }} {{ users | join('/', attribute='name') }} {{ users | map(attribute='age') | list }} {{ words | map('upper') | list }} {{ words | map('replace', 'p', 'b') | join(' ') }} {{ users | map(attribute='tags', default='-') | list }} {{ users | map(attribute='name.0') | list }}
{{ users | selectattr('active') | map(attribute='name') | list }} {{ users | rejectattr('active') | map(attribute='name') | list }} {{ users | selectattr('age', 'equalto', 30) | list | length }} {{ users | selectattr('tags', 'defined') | map(attribute='name') | join }} {{ list | select('odd') | list }} {{ list | reject('gt', 1) | list }} {{ [0, 1, '', 'a'] | select | list }}
{{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ list | sort(reverse=true) }} {{ users | sort(attribute='age') | map(attribute='name') | list }} {{ users | sort(attribute='age,name') | map(attribute='name') | list }} {{ words | unique | list }} {{ words | unique(true) | list }} {{ d | dictsort }} {{ d | dictsort(true) }} {{ {'x': 2, 'y': 1} | dictsort(by='value') }} {{ {'x': 2, 'y': 1} | dictsort(reverse=true) }}
{{ list | first }} {{ list | last }} [{{ [] | first }}] {{ 'abc' | first }} {{ 'abc' | last }} {{ list | reverse | list }} {{ 'abc' | reverse }} {{ 'abc' | list }} {{ list | min }} {{ list | max }} {{ words | max }} {{ users | max(attribute='age') }} {{ list | sum }} {{ users | sum(attribute='age') }} {{ list | sum(start=10) }}
{{ missing | default('x') }} {{ nothing | default('x') }} {{ nothing | default('x', true) }} {{ empty | d('y', boolean=true) }} {{ name | default }} [{{ missing | default }}] {{ d.z | default(d.a) }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '3.9' | int }} {{ 3.9 | int }} {{ '1f' | int(base=16) }} {{ '0x1f' | int(0, 16) }} {{ none | int }} {{ ' 12 ' | int }} {{ '1_0' | int }} {{ '2.5' | float }} {{ 'x' | float }} {{ 'x' | float(1.5) }} {{ 3 | float }} {{ '1e3' | float }} {{ 'inf' | float }} {{ '.5' | float }}
{{ 42.55 | round }} {{ 42.55 | round(1) }} {{ 2.5 | round }} {{ 42.51 | round(0, 'floor') }} {{ 42.1 | round(0, 'ceil') }} {{ 5 | round }} {{ -3 | abs }} {{ 3.5 | abs }} {{ 1234.567 | round(-2) }}
{{ d | tojson }} {{ quote | tojson }} {{ uni | tojson }} {{ floats | tojson }} {{ nothing | tojson }} {{ yes | tojson }} {{ [] | tojson }} {{ {} | tojson }} {{ (1, 2) | tojson }} {{ uni | tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': [1]} | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}
{{ d | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ [1, {'a': []}] | tojson(indent=4) }} {{ [1] | tojson(indent='--') }} {{ [1, 2] | tojson(indent=0) }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(width=2, blank=true) }}|{{ 'a\nb\n' | indent('> ') }}|{{ '' | indent }}|{{ 'x\n' | indent(1, first=true) }}
{{ '<a>&"' | e }} {{ '<a>' | safe }} {{ ('<a>' | safe) + '<b>' }} {{ '<a>' | safe | length }} {{ ('<a>' | safe) ~ '<b>' }} {{ '<' | e | e }} {{ '<' | forceescape }} {{ d | tojson | safe }}
{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz qux' | truncate(11) }} {{ 'foo bar baz qux' | truncate(11, false, '...', 0) }} {{ 'a' | center(5) }}| {{ 'a b-c' | wordcount }} {{ '%s-%s' | format(1, 2) }} {{ '%(a)s' | format(a=3) }}
{{ range(7) | batch(3) | list }} {{ range(7) | batch(3, 0) | list }} {{ range(7) | slice(3) | list }} {{ range(7) | slice(3, 'x') | list }} {{ d | items | list }} {{ 5 | string + 'x' }} {{ d | attr('a') }} {{ name | attr('upper') is defined }} {{ 12 | string | length }}
{{ range(3) }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ range(3) | length }} {{ 2 in range(3) }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('a', 1)]) }}
{{ 'a' 'b' "c" }} {{ 'tab\tnl\n\x41\u00e9\U0001F600\101\q\\' }} {{ "it's" }} {{ 'say "x"' }} {{ '\'' }}
{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%A %B %-d %H:%M:%S %j %p %I %y %%') }} {{ strftime_now('%-I:%M') }}
{{ users[0].name.upper()[0] }} {{ (users | first).name }} {{ users[0]['na' ~ 'me'] }} {{ {'a': {'b': 5}}.a.b }} {{ [1, 2, 3][1] }} {{ 'abc'.upper().lower() }} {{ ('a' ~ 'b') | upper }} {{ 1 | string ~ 2 }} {{ -1 | abs }}
{{ messages[0].role == 'system' and messages | length > 1 }} {{ (messages | map(attribute='role') | list)[1:] }} {{ messages[1:] | map(attribute='content') | join('+') }} {{ messages[::-1][0].role }}
{{ 'x' if missing is defined and missing.y else 'z' }} {{ missing or 'dflt' }} {{ (missing | default([])) | length }} {{ missing | length }} {{ missing | list }} {{ missing | join }} {{ missing | upper }}|
{{ nothing or 'n' }} {{ [] or {} or 'e' }} {{ '0' and 1 }} {{ 0.0 or 'f' }} {{ {} | length }} {{ messages | selectattr('role', 'equalto', 'nobody') and 'generators are true' }}
{% set x = 5 %}{{ x }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, (e, f)) = (1, [2, 3]) %}{{ c }}{{ e }}{{ f }}{% set s = 'abc' %}{% set p, q, r = s %}{{ q }}
{% set ns = namespace(n=0, l=[]) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }} {{ ns.l }} {{ ns.zip }}{% set ns.new = 'v' %}{{ ns.new }}{{ ns['n'] }}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 9 %}{{ x }}{% endfor %}{{ x }} {% if true %}{% set x = 7 %}{% endif %}{{ x }} {% for i in [1] %}{% if true %}{% set y = 3 %}{% endif %}{{ y }}{% endfor %}[{{ y }}]
{% for i in list %}{{ loop.index }}/{{ loop.length }}:{{ i }}{{ ',' if not loop.last }}{% endfor %} {% for i in list %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}
{% for i in list %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{{ loop.cycle('a', 'b') }} {% endfor %}{% for i in list %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}
{% for i in [] %}x{% else %}none{% endfor %} {% for i in list if i > 1 %}{{ loop.index }}{{ i }}{{ loop.length }} {% else %}no{% endfor %} {% for i in list if i > 9 %}x{% else %}no{% endfor %} {% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}{% for c in 'äb' %}{{ c }}.{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for x in missing %}x{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in [1, 2] %}{% for j in [1, 2, 3] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}
{% for n in tree recursive %}{{ n.n }}d{{ loop.depth }}{% if n.c %}({{ loop(n.c) }}){% endif %} {% endfor %}
{% macro m(a, b='x', c=none) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m(1, c=5) }}{{ m() }}{{ m(*[1, 2]) }}{{ m(**{'a': 1, 'c': 2}) }}{{ m(1) | upper }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }} {% macro n(a) %}{{ a }}{{ varargs | join('+') }}{% endmacro %}{{ n(1, 2, 3) }} {% macro fib(n) %}{{ n if n < 2 else fib(n - 1) | int + fib(n - 2) | int }}{% endmacro %}{{ fib(8) }}
{% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box('x') %}in{{ name }}{% endcall %} {% macro each(l) %}{% for i in l %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(x, n=0) each([7, 8]) %}<{{ x }},{{ n }}>{% endcall %} {% macro opt() %}{% if caller %}{{ caller() }}{% else %}none{% endif %}{% endmacro %}{{ opt() }}{% call opt() %}c{% endcall %}
{% set g = 1 %}{% macro m() %}{{ g }}{% set g = 5 %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}{{ g }} {% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(2) }}{% endmacro %}{{ outer(1) }} {% for i in [1, 2] %}{{ loop.index }}{% macro q() %}{{ i }}{% endmacro %}{{ q() }}{% endfor %}
{% set b %}hello {{ name }}{% endset %}{{ b }}{{ b | length }} {% set u | upper | trim %} x{{ name }} {% endset %}{{ u }} {% filter upper %}abc{{ name }}{% endfilter %} {% filter replace('a', 'b') | upper %}aa{% endfilter %} {% set b %}{% set inner = 1 %}{% endset %}[{{ inner }}]
{% with x = 1, y = 2 %}{{ x }}{{ y }}{% endwith %}[{{ x }}] {% with %}{% set z = 1 %}{{ z }}{% endwith %}[{{ z }}] {% set x = 5 %}{% with x = x + 1 %}{{ x }}{% endwith %}{{ x }} {% print 1 + 1 %}
{% if no %}a{% elif yes %}b{% else %}c{% endif %} {% if no %}a{% elif no %}b{% else %}c{% endif %} {% if no %}a{% else %}{% if yes %}n{% endif %}{% endif %} {% if no %}a{% else %}{% if no %}n{% endif %}m{% endif %} {% if list and d %}x{% endif %}{% if 1, %}tuple{% endif %}
{# comment #}a{#- c -#} b {# {{ x }} {% y %} #}c {% raw %}{{ not }} {% this %}{% endraw %}{% raw -%}  x  {%- endraw %}
a {%- if yes %} b {% endif -%} c  {{- name -}}  d {{ '}}' }} {{ "{%" }} {{ {'a': {'b': 1}}['a']['b'] }}
{% generation %}gen{{ name }}{% set leak = 1 %}{% endgeneration %}[{{ leak }}]{% for i in list %}{% generation %}{{ i }}{% endgeneration %};{% endfor %}
{% set j = joiner('; ') %}{% for i in list %}{{ j() }}{{ i }}{% endfor %} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{% set _ = c.reset() %}{{ c.next() }}
{% set g = users | map(attribute='name') %}{{ g | list }}{{ g | list }} {{ 'yes' if users | select('none') else 'no' }} {{ ([1, 2] | map('string') | first) }} {{ users | map(attribute='name') | map('lower') | sort | join(',') }}
{% if d is mapping and 'a' in d and d.a is number and d.a == 1 %}ok{% endif %} {{ 'x' is string and 1 is not string }} {{ (1 if yes else 2) + 3 }} {{ not missing is defined }} {{ 'a' in ['a'] and 'b' not in ['a'] }} {{ 1 + 1 == 2 and not 1 == 2 }}
{{ missing.x }}
{{ missing.x is defined }}
{{ missing['x'] }}
{{ d.missing.x }}
{{ missing + 'x' }}
{{ 'x' + missing }}
{{ 'x' + 1 }}
{{ 1 / 0 }}
{{ none + 1 }}
{{ missing() }}
{{ 'x'() }}
{{ raise_exception('No ' ~ name ~ '!') }}
{{ list.append(1) }}
{{ d.update({}) }}
{{ d.pop('a') }}
{{ name.__class__ }}
{{ name.__class__.x }}
{{ d | nofilter }}
{{ d is notest }}
{{ 'a' if yes else (1 | nofilter) }}
{% if no %}{{ 1 | nofilter }}{% endif %}fine
{% if yes %}{{ 1 | nofilter }}{% endif %}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% set a, b = [1] %}
{{ 1 < 'a' }}
{{ [1, 'a'] | sort }}
{{ 1 in 'abc' }}
{{ none | length }}
{{ (list | map('string')) | length }}
{{ missing | tojson }}
{{ range(1000000) | list }}
{{ {'a': 1} + {} }}
{{ {[]: 1} }}
{% set name.x = 1 %}
{% set d.x = 1 %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{% endmacro %}{% call m(1) %}x{% endcall %}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{{ 'a'.index('x') }}
{{ '{}'.format() }}
{{ '%d' % 'a' }}
{{ '%s %s' % ('a',) }}
{{ 'a'.split('') }}
{{ ','.join([1]) }}
{{ 'abc'.foo }}|{{ 'abc'.foo is defined }}
{{ }}
{{ 1 + }}
{{ (1 }}
{{ 'abc }}
{% if yes %}
{% endif %}
{% for x in list %}{% endif %}
{% unknown %}
{% break %}
{% set 1 = 2 %}
{{ a b }}
{{ [1, 2 }}
{# open
{% raw %}open
{{ 1 is in }}
{{ f(a=1, 2) }}
{% else %}
{{ loop.index }}
{% macro %}{% endmacro %}
{% for %}{% endfor %}
{{ 'a' | }}
{{ '\N{DASH}' | nofilter }}
{% include 'x' %}
{% import 'x' as y %}
{% extends 'x' %}
""".strip("\n").split("\n")

BLOCKS = r"""
  {% if yes %}
  a
  {% endif %}
b
=====
  {%- if yes %}
  a
  {%- endif %}

b
=====
{% if yes -%}

   a   

{%- endif %}
x
=====
  {%+ if yes %}
a
  {%+ endif +%}
b
=====
text   {% if yes %} same line {% endif %} tail
   {# comment line #}
next {# inline #} more
   {{ name }}
=====
{% for i in list %}
  - {{ i }}
{% endfor %}
done
=====
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {{- '<u>' + m.content + '\n' }}
    {%- elif m.role == 'assistant' %}
        {%- generation %}
            {{- m.content }}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
=====
a
  {% raw %}
  {{ x }}
  {% endraw %}
b
=====
{% macro f(x) %}
  <{{ x }}>
{% endmacro %}
{{ f(1) }}
{{- f(2) -}}
end

=====
{{ [
  1,
  2,
] }}
{{ {
  'a': 1,
} }}
{% set x = [
   'p',
   'q'
] %}
{{ x }}
=====
	{% if yes %}
	tab
	{% endif %}
   
   {% set z = 1 %}   
after
=====
{{ name }}
{{ name }}

{{- name }}


=====
{% set ns = namespace(found=false) %}
{% for m in messages %}
{% if m.role == 'user' %}
{% set ns.found = true %}
{% endif %}
{% endfor %}
{{ ns.found }}
""".strip("\n").split("\n=====\n")


def main():
    env, cases = environment(), []
    for template in ONE_LINE + BLOCKS + ["a\r\nb\rc\n", "\n", "", "x\n\n", "{{ name }}\r\n{% if yes %}\r\n  y\r\n{% endif %}\r\n"]:
        context = dict(CONTEXT)
        del context["strftime_now"]
        try:
            cases.append({"template": template, "text": env.from_string(template).render(**context)})
        except Exception as e:
            cases.append({"template": template, "raises": type(e).__name__})
    with open("template_cases.json", "w") as f:
        json.dump({"jinja2": jinja2.__version__, "context": CONTEXT, "cases": cases}, f, indent=1, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
