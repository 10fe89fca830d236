"""Results do not depend on the layout: one process, two under DDP, two under ZeRO-2 and ZeRO-3."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import toy_model, toy_tokenizer

from seed_trl.commands.launch import cpu_environment, find_accelerate_config
from seed_trl.commands.parsing import read_config

WORKER = Path(__file__).with_name("process_worker.py")

pytestmark = pytest.mark.slow

with_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed")
LAYOUTS = ["ddp", pytest.param("zero2", marks=with_deepspeed), pytest.param("zero3", marks=with_deepspeed)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy-model")
    tokenizer = toy_tokenizer()
    toy_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def start(processes: int, folder: Path, model: Path, layout: str = "ddp", **options) -> subprocess.CompletedProcess:
    folder.mkdir()
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [sys.executable, *(launch if processes > 1 else []), str(WORKER)]
    environment = {
        **os.environ,
        **cpu_environment(read_config(find_accelerate_config(layout))),
        "OMP_NUM_THREADS": "1",
    }
    line = [*command, str(folder), str(model), json.dumps(options)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300)


def train(processes: int, folder: Path, model: Path, layout: str = "ddp", **options) -> tuple[dict, list[dict]]:
    """(weights, log) of a run."""
    done = start(processes, folder, model, layout, **options)
    assert done.returncode == 0, done.stderr[-8000:]
    weights = "adapter_model.safetensors" if options.get("lora") else "model.safetensors"
    return load_file(folder / "trained" / weights), json.loads((folder / "log.json").read_text())


def furthest(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    return max((one[name] - two[name]).abs().max().item() for name in one if name in two)


ALONE: dict[tuple, tuple] = {}


def alone(tmp_path_factory, model: Path, **options) -> tuple[dict, list[dict]]:
    """The run in one process, made once for all layouts."""
    key = tuple(sorted(options.items()))
    if key not in ALONE:
        ALONE[key] = train(1, tmp_path_factory.mktemp("alone") / "run", model, **options)
    return ALONE[key]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("context", ["steps", "transcript"])
def test_two_processes_train_what_one_trains(model_dir, tmp_path, tmp_path_factory, context, layout):
    one, log = alone(tmp_path_factory, model_dir, context=context)
    two, log_of_two = train(2, tmp_path / "two", model_dir, layout, context=context)
    assert furthest(one, two) < 1e-5
    assert furthest(one, load_file(model_dir / "model.safetensors")) > 1e-3
    for first, second in zip(log[:2], log_of_two[:2], strict=True):
        for key in (
            "loss",
            "grad_norm",
            "opd/gate",
            "opd/active_share",
            "skills/parsed",
            "rollout/return",
            "num_tokens",
        ):
            assert first[key] == pytest.approx(second[key], rel=1e-4, abs=1e-6), key
    # in the first batch the second process has no skill at all
    assert 0 < log[0]["opd/active_share"] < 1 == log[1]["opd/active_share"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_token_budget_changes_nothing_in_any_layout(model_dir, tmp_path, tmp_path_factory, layout):
    one, _ = alone(tmp_path_factory, model_dir, context="steps")
    two, _ = train(2, tmp_path / "two", model_dir, layout, context="steps", max_tokens_per_forward=250)
    assert furthest(one, two) < 1e-5


def test_step_credits_are_the_same_in_two_processes(model_dir, tmp_path, tmp_path_factory):
    options = {"context": "transcript", "opd_variant": "centered", "opd_scope": "step", "opd_weight_decay_steps": 4}
    one, log = alone(tmp_path_factory, model_dir, **options)
    two, log_of_two = train(2, tmp_path / "two", model_dir, "ddp", **options)
    assert furthest(one, two) < 1e-5
    assert [entry["opd/loss"] for entry in log[:2]] == pytest.approx(
        [entry["opd/loss"] for entry in log_of_two[:2]], rel=1e-4
    )
    token, _ = alone(tmp_path_factory, model_dir, context="transcript")
    assert furthest(one, token) > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_adapter_is_the_same_in_any_layout(model_dir, tmp_path, tmp_path_factory, layout):
    one, log = alone(tmp_path_factory, model_dir, context="steps", lora=True)
    two, log_of_two = train(2, tmp_path / "two", model_dir, layout, context="steps", lora=True)
    assert furthest(one, two) < 1e-5
    assert max(weight.abs().max().item() for name, weight in one.items() if "lora_B" in name) > 1e-3
    # against the policy without its adapter, which starts as the policy itself
    assert log[0]["kl"] == pytest.approx(0.0, abs=1e-6) and log[1]["kl"] > 1e-6
    # TRL's mean over micro-batches weighs them alike, however many tokens each has
    assert log[1]["kl"] == pytest.approx(log_of_two[1]["kl"], rel=0.3)


def test_a_mean_over_micro_batches_is_that_of_all_processes(model_dir, tmp_path):
    """Every micro-batch counts alike under `micro_batch`, so that two processes with two each train what one with four does
    as long as the micro-batches hold the same rows: a row each here."""
    options = {"context": "transcript", "opd_normalization": "micro_batch", "beta": 0.0}
    one, log = train(
        1, tmp_path / "one", model_dir, per_device_train_batch_size=1, gradient_accumulation_steps=8, **options
    )
    two, log_of_two = train(
        2, tmp_path / "two", model_dir, per_device_train_batch_size=1, gradient_accumulation_steps=4, **options
    )
    assert furthest(one, two) < 1e-5
    assert log[0]["opd/loss"] == pytest.approx(log_of_two[0]["opd/loss"], rel=1e-4)


def test_a_process_that_fails_ends_all_with_its_message(model_dir, tmp_path):
    started = time.monotonic()
    done = start(2, tmp_path / "run", model_dir, context="steps", fail_on_rank=1)
    assert done.returncode != 0
    assert "process 1 has lost its environment" in done.stderr
    assert time.monotonic() - started < 120
    assert not (tmp_path / "run" / "log.json").exists()


# ----------------------------------------------------------------------------------------------------- the command line


def line(folder: Path, *options: str) -> list[str]:
    """A run of the embedded policy: four updates, a checkpoint after each."""
    return [
        sys.executable, "-m", "seed_trl.cli", "train", "--config", "alfworld/tiny", "--output_dir", str(folder),
        "--max_steps", "4", "--save_steps", "1", "--save_total_limit", "10", "--per_device_train_batch_size", "8",
        "--num_generations", "4", "--max_env_steps", "5", "--beta", "0.01", "--disable_tqdm", "true", *options,
    ]  # fmt: skip


def run(folder: Path, *options: str) -> list[str]:
    """The losses that a run printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("ACCELERATE_USE_CPU", None)
    done = subprocess.run(line(folder, *options), env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-8000:]
    return [ast.literal_eval(row)["loss"] for row in done.stdout.splitlines() if row.startswith("{'loss'")]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_goes_on_in_any_layout(tmp_path, layout):
    options = ["--accelerate_config", layout, "--num_processes", "2"]
    whole = run(tmp_path / "whole", *options)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for step in (3, 4):
        shutil.rmtree(tmp_path / "resumed" / f"checkpoint-{step}")
    assert run(tmp_path / "resumed", *options, "--resume_from_checkpoint", "auto") == whole[2:]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed")]
    assert furthest(*weights) == 0.0
    # a finished run that is resumed has nothing left to do
    assert run(tmp_path / "resumed", *options, "--resume_from_checkpoint", "auto") == []
    assert furthest(weights[0], load_file(tmp_path / "resumed" / "model.safetensors")) == 0.0


def test_a_run_that_is_killed_and_resumed_ends_as_one_that_was_not(tmp_path):
    run(tmp_path / "whole")
    moment = random.Random()
    for _ in range(2):
        process = subprocess.Popen(
            line(tmp_path / "killed", "--resume_from_checkpoint", "auto"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        time.sleep(moment.uniform(6, 14))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run(tmp_path / "killed", "--resume_from_checkpoint", "auto")
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed")]
    assert furthest(*weights) == 0.0
