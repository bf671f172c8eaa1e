# The commands that people type; CMake does the work, in build/. See also CMakePresets.json.
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
TESTS ?= .
CMAKE_FLAGS ?=
# A target that calls make again need not tell of each folder.
MAKEFLAGS += --no-print-directory

ninja := $(if $(shell command -v ninja),-G Ninja)
ccache := $(if $(shell command -v ccache),-DCMAKE_C_COMPILER_LAUNCHER=ccache)
sources = $(shell git ls-files '*.c' '*.h')

.PHONY: all configure demo test install deps deps-dev docs format check asan test-openmpi test-thread fuzz fault overlap interop bench bench-peers bench-ranks bench-more bench-report clean

all: configure
	@cmake --build $(BUILD) --parallel $(JOBS)

configure:
	@test -f $(BUILD)/CMakeCache.txt || cmake $(ninja) -B $(BUILD) $(ccache) $(CMAKE_FLAGS) >$(BUILD).log 2>&1 || \
	    { cat $(BUILD).log; echo "If something is missing, 'make deps' installs it."; rm -rf $(BUILD) $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log

# A small Llama learns to write plays; demo/run.sh says what it does.
demo: configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target plait
	@PLAIT=$(abspath $(BUILD))/plait demo/run.sh $(abspath $(BUILD))/demo

# Some tests; TESTS='config|cli' chooses by name.
test: all
	@cd $(BUILD) && ctest --output-on-failure --parallel $(JOBS) -R '$(TESTS)'

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

deps:
	@tools/deps.sh build test
deps-dev:
	@tools/deps.sh build test develop

# The pages and the completion that follow from the tables of fields and commands.
docs: all
	$(BUILD)/make_docs reference >docs/configuration.md
	$(BUILD)/make_docs man >docs/plait.1
	$(BUILD)/make_docs completion >packaging/plait.bash

format:
	clang-format -i $(sources)
check: # prints only what is wrong
	@python3 tools/check_includes.py
	@clang-format --dry-run --Werror $(sources)

asan:
	@$(MAKE) test BUILD=build-asan CMAKE_FLAGS=-DPLAIT_SANITIZE=ON
fuzz:
	@tests/run_fuzz.sh

# The tests of several processes by OpenMPI, which may be installed beside MPICH (libopenmpi-dev).
test-openmpi:
	@$(MAKE) test BUILD=build-openmpi TESTS='^dist_' CMAKE_FLAGS=-DMPI_C_COMPILER=mpicc.openmpi

# Offload to disk where there is no liburing.
test-thread:
	@$(MAKE) test BUILD=build-thread TESTS='disk|offload' CMAKE_FLAGS=-DPLAIT_URING=OFF

# Runs that are killed at a random moment and go on; `make test` has a few of them.
RUNS ?= 50
SEED ?= 1
fault: all
	@cd $(BUILD) && FAULT_RUNS=$(RUNS) FAULT_SEED=$(SEED) ctest --verbose -R '^dist_fault$$' --timeout 3600

# How much of the messages between two hosts is hidden behind computing, as docs/performance.md tells. Root only.
overlap: all
	@cd $(BUILD) && ctest --verbose -R '^dist_overlap$$'

# Twenty steps against transformers and PEFT on a real model, which are fetched from PyPI into $(BUILD)/peer. DATA is
# GSM8K's train.jsonl (https://github.com/openai/grade-school-math) or another file of {question, answer} lines.
INTEROP_MODEL ?= $(BUILD)/SmolLM2-135M
DATA ?= ../shared/data/datasets/gsm8k/train.jsonl
fetch_peer = test -f $(BUILD)/peer/ready || { python3 -m venv $(BUILD)/peer && \
    $(BUILD)/peer/bin/pip install -q -r tools/interop.txt && touch $(BUILD)/peer/ready; }
fetch_model = test -f $(INTEROP_MODEL)/config.json || $(BUILD)/peer/bin/python tools/get_smollm2.py $(INTEROP_MODEL)
interop: configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target plait
	@test -f $(DATA) || { echo "interop: $(DATA) is not there; give DATA=gsm8k/train.jsonl"; exit 2; }
	@$(fetch_peer)
	@$(fetch_model)
	OMP_WAIT_POLICY=passive $(BUILD)/peer/bin/python tools/interop.py --plait $(BUILD)/plait --model $(INTEROP_MODEL) \
	    --data $(DATA) --work $(BUILD)/interop

# The workloads of docs/performance.md, on a machine that does nothing else; BENCH='w1|w3' chooses some by name. With peers:
# beside PyTorch, transformers and PEFT in the same rounds. Results are in $(BUILD)/bench/*.csv; copied to bench/ they
# are what `make bench-report` writes into docs/.
BENCH ?= .
TCMALLOC ?= $(wildcard /usr/lib/*-linux-gnu/libtcmalloc_minimal.so.4)
ROUNDS ?= 2
bench = python3 bench/$(1).py --build $(BUILD) --work $(BUILD)/bench
peer = --peer-python $(BUILD)/peer/bin/python $(if $(TCMALLOC),--preload $(TCMALLOC))
bench: configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target plait bench_floor
	@$(call bench,steps) --cases '$(BENCH)' --rounds $(ROUNDS)
bench-peers: configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target plait bench_floor
	@$(fetch_peer)
	@$(call bench,steps) --cases '$(BENCH)' --rounds $(ROUNDS) $(peer)
# Several processes against one, and against DDP, FSDP2 and DeepSpeed (which is built from source; without it its rows
# are left out).
bench-ranks: configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target plait
	@$(fetch_peer)
	@$(BUILD)/peer/bin/python -c 'import deepspeed' 2>/dev/null || \
	    $(BUILD)/peer/bin/pip install -q --no-build-isolation setuptools wheel deepspeed || true
	@$(call bench,ranks) --cases '$(BENCH)' --rounds $(ROUNDS) $(peer)
# What a step's time goes into, a second thread, long sequences, offload to disk, and with a real model some steps, the
# start and writing.
bench-more: configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target plait bench_floor bench_ops
	@$(call bench,phases)
	@$(call bench,threads)
	@$(call bench,growth)
	@$(call bench,offload)
	@$(fetch_peer)
	@$(fetch_model)
	@$(call bench,steps) --cases '^w1-(full-f32|full-bf16|lora-bf16)$$' --rounds 1 --model $(INTEROP_MODEL) $(peer)
	@$(call bench,generate) --tokenizer $(INTEROP_MODEL) $(peer)
	@$(call bench,start) --model $(INTEROP_MODEL) --data $(DATA)
bench-report:
	@python3 bench/report.py bench docs/performance.md docs/performance.svg

clean:
	rm -rf $(BUILD)
