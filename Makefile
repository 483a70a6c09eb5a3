# SPDX-License-Identifier: Apache-2.0
#
# make run     a frontend with four mock workers on http://127.0.0.1:8000     ARGS="--flag …" adds flags
# make test    every test that needs nothing but this repository
# make lab     policies compared in simulation, with a page of plots in target/lab-results/index.html
# PROFILE=release gives optimised binaries to run and demo (its first build takes far longer).

.DEFAULT_GOAL := help
.PHONY: help setup frontend run demo lab test test-peers test-kvbm lint bench release

# rustup's directory, for shells that have not sourced its profile.
export PATH := $(PATH):$(HOME)/.cargo/bin

PROFILE ?= dev
ARGS ?=
FRONTEND = $(or $(CARGO_TARGET_DIR),target)/$(PROFILE:dev=debug)/regime-frontend

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## Install the Debian packages that the build needs and that are missing
	@scripts/setup.sh

# Without `-p`, features are those of the whole workspace, so that run and test share one build of the dependencies.
frontend: setup
	cargo build --profile $(PROFILE) --bin regime-frontend

run: frontend ## Serve with four mock workers on http://127.0.0.1:8000
	$(FRONTEND) serve --mock-workers 4 $(ARGS)

demo: frontend ## Walk a small fleet through all regimes and back, in about a minute
	$(FRONTEND) demo $(ARGS)

# Its own profile: simulations want optimised code, and the lab needs a part of the dependencies only.
LAB_DIR = $(or $(CARGO_TARGET_DIR),target)/lab-results

lab: setup ## Compare policies in simulation: tables here, plots in a page
	cargo build --profile lab -p regime-lab --bin regime-lab
	$(or $(CARGO_TARGET_DIR),target)/lab/regime-lab suite standard --quick --out $(LAB_DIR) --report $(LAB_DIR) $(ARGS)

test: setup ## Run all tests
	cargo test --workspace $(ARGS)

test-peers: ## Run the tests against the OpenAI client and Dynamo's own workers from PyPI
	@scripts/setup.sh --peers
	cargo test --workspace --features regime-integration/peers --test peers $(ARGS)

# Its own build: no other crate needs KVBM's, and features of the workspace's would change with them.
test-kvbm: setup ## Test the offload policy for NVIDIA's KV block manager
	cargo test -p regime-kv --features kvbm $(ARGS)

lint: setup ## Check formatting and run clippy, warnings denied
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

bench: setup ## Run the benchmarks
	cargo bench -p regime-benches $(ARGS)

release: setup ## Build optimised binaries
	cargo build --release --workspace --bins
