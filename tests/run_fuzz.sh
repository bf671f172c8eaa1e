#!/bin/sh
# Builds the fuzz targets and runs each for SECONDS_EACH (20) seconds, or those that are named. A corpus that is given as
# fuzz/corpus/<name>/ is begun from; what is found stays in build-fuzz/.
set -eu
cd "$(dirname "$0")/.."
seconds=${SECONDS_EACH:-20}
build=build-fuzz
[ -f $build/CMakeCache.txt ] || cmake -S . --preset fuzz $(command -v ninja >/dev/null && echo -G Ninja) \
    $(command -v ccache >/dev/null && echo -DCMAKE_C_COMPILER_LAUNCHER=ccache) >/dev/null
cmake --build $build --parallel "$(nproc)"

passed=0 failed=0
for source in fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    [ $# = 0 ] || case " $* " in *" ${name#fuzz_} "*) ;; *) continue ;; esac
    mkdir -p "$build/corpus/$name" "$build/found"
    seeds=
    [ ! -d "fuzz/corpus/${name#fuzz_}" ] || seeds="fuzz/corpus/${name#fuzz_}"
    if "$build/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -max_len=65536 -print_final_stats=0 \
        -artifact_prefix="$build/found/$name-" "$build/corpus/$name" $seeds >"$build/$name.log" 2>&1; then
        passed=$((passed + 1))
        echo "$name: $(sed -n 's/^Done //p' "$build/$name.log")"
    else
        failed=$((failed + 1))
        tail -n 40 "$build/$name.log"
        echo "$name: FAILED; $build/found has the input, $build/$name.log the whole story"
    fi
done
echo "fuzz: $passed passed, $failed failed"
[ $failed = 0 ]
