# Everything a person needs: `make up` to see it work, `make test` to prove it.
# Both set up what they need on a fresh machine (see scripts/setup).

VENV := .venv
READY := $(VENV)/.ready
FUZZ_SECONDS ?= 3600
PYTEST_ARGS ?= -n auto
TEST_TIME := $(if $(filter-out -n auto,$(PYTEST_ARGS)),running the tests that were asked for,running all tests: about 15 minutes on two cores)

.PHONY: up down test test-unit real test-real check fuzz fuzz-corpus bench docs picture coverage wheel lock clean

# A cluster of three zones, running until make down.
up: $(READY)
	@$(VENV)/bin/keepclose up --detach

down: $(READY)
	@$(VENV)/bin/keepclose down

test: $(READY)
	@echo "$(TEST_TIME)"
	@scripts/setup-fuzz
	@$(VENV)/bin/python -m pytest $(PYTEST_ARGS) -m "not real"

# What needs no root, no kernel and no server: about 40 seconds on two cores.
UNIT_TESTS := model routing slices ruleset runtime advise
test-unit: $(READY)
	@$(VENV)/bin/python -m pytest -n auto -m "not real" $(addprefix tests/,$(UNIT_TESTS)) \
	  --ignore tests/ruleset/test_ruleset_kernel.py

# kubectl, kube-apiserver, kube-controller-manager, kube-proxy and etcd as they are released.
real: $(READY)
	@scripts/real

test-real: $(READY)
	$(VENV)/bin/python -m pytest -m real

check: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python scripts/rooms.py

# Every target for its part of the time, two at once; FUZZ_TARGETS names some of them.
fuzz: $(READY)
	@scripts/setup-fuzz
	@$(VENV)/bin/python scripts/fuzz.py --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

# Keep the inputs that the runs found to cover more, as few as do.
fuzz-corpus: $(READY)
	@scripts/setup-fuzz
	@$(VENV)/bin/python scripts/fuzz.py --keep $(FUZZ_TARGETS)

bench: $(READY)
	$(VENV)/bin/python bench/core.py
	$(VENV)/bin/python bench/simulator.py
	$(VENV)/bin/python bench/csvfiles.py
	$(VENV)/bin/python bench/rehints.py
	$(VENV)/bin/python bench/demand.py
	$(VENV)/bin/python bench/plan.py
	$(VENV)/bin/python bench/sweeps.py
	$(VENV)/bin/python bench/dashboard.py
	$(VENV)/bin/python bench/client.py
	$(VENV)/bin/python bench/storage.py
	$(VENV)/bin/python bench/apiserver.py
	$(VENV)/bin/python bench/hostile.py
	$(VENV)/bin/python bench/controller.py
	$(VENV)/bin/python bench/controllerscale.py
	$(VENV)/bin/python bench/sidebyside.py
	$(VENV)/bin/python bench/proxy.py
	$(VENV)/bin/python bench/swaps.py
	$(VENV)/bin/python bench/flows.py
	$(VENV)/bin/python bench/cluster.py

docs: $(READY)
	$(VENV)/bin/python scripts/reference.py
	$(VENV)/bin/python scripts/map.py

# The picture of the README, from a real run.
picture: $(READY)
	$(VENV)/bin/python scripts/picture.py

coverage: $(READY)
	$(VENV)/bin/python -m pytest $(PYTEST_ARGS) -m "not real" --cov --cov-report=term

# One file with everything in it: uvx --from dist/keepclose-*.whl keepclose up
wheel: $(READY)
	@rm -rf dist
	@$(VENV)/bin/python -m uv build --quiet --wheel --no-build-isolation --python $(VENV)/bin/python -o dist .
	@ls dist/*.whl

lock:
	$(VENV)/bin/python -m uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	  --extra dask --extra server --group dev pyproject.toml -o requirements.lock
	$(VENV)/bin/python -m uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	  --only-binary :all: --group fuzz -o tests/fuzz/requirements.lock

clean:
	rm -rf $(VENV) .fuzz dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

$(READY): pyproject.toml requirements.lock scripts/setup
	@scripts/setup
