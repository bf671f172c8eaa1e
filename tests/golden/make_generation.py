#!/usr/bin/env python3
"""Writes generation.json: small templates with {% generation %}, and what transformers' return_assistant_tokens_mask
trains of the text that they make, between U+27E6 and U+27E7. Needs transformers; run it in this folder."""
import json

from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATES = {
    "block": "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>"
             "{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}\n{% endfor %}",
    "content only": "{% for m in messages %}{% if m.role == 'assistant' %}A: {% generation %}{{ m.content + ' ' }}"
                    "{% endgeneration %}{% else %}U: {{ m.content }} {% endif %}{% endfor %}",
    "in a macro": "{% macro turn(m) %}{% generation %}{{ m.content | trim }}</s>{% endgeneration %}{% endmacro %}"
                  "{% for m in messages %}{% if m.role == 'assistant' %}{{ turn(m) }}\n{% else %}[{{ m.content }}]"
                  "{% endif %}{% endfor %}",
    "a condition inside": "{%- for m in messages %}\n  {%- if m.role == 'assistant' %}\n    {%- generation %}\n"
                          "      {{- '<think>\\n\\n</think>\\n\\n' if loop.last }}\n      {{- m.content + '<e>' }}\n"
                          "    {%- endgeneration %}\n  {%- else %}\n    {{- '<u>' + m.content + '<e>\\n<a>' }}\n"
                          "  {%- endif %}\n{%- endfor %}",
}
CONVERSATIONS = [
    ["Hi", "Hello! How can I help?", "Count.", "1, 2, 3"],
    ["Grüße, 世界! 👩‍🚀", "Привет — \"quoted\" <tag>", "é", " naïve \n"],
    ["same", "same", "same", "same", "same"],
    ["Hi", "", "Again", "Here."],
]

cases = []
for name, template in TEMPLATES.items():
    for texts in CONVERSATIONS:
        messages = [{"role": "assistant" if i % 2 else "user", "content": t} for i, t in enumerate(texts)]
        rendered, spans = render_jinja_template([messages], chat_template=template, return_assistant_tokens_mask=True)
        text, marked, at = rendered[0], "", 0
        for begin, end in spans[0]:
            if begin == end:
                continue
            marked += text[at:begin] + "\u27e6" + text[begin:end] + "\u27e7"
            at = end
        cases.append({"name": name, "template": template, "messages": messages, "marked": marked + text[at:]})
with open("generation.json", "w") as f:
    json.dump(cases, f, ensure_ascii=False, indent=1)
    f.write("\n")
