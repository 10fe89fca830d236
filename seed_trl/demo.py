"""The whole chain on a tiny policy, in phases that can be interrupted.

    rate the policy -> collect episodes, write skills by rule -> skill SFT -> GRPO and SEED from there -> rate -> report

Each phase has a folder with `phase.json`: the fingerprint of everything it depends on, and whether it is done. A phase
with another fingerprint is done anew, and with it all that build on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ._files import recipe_path, write_atomic
from ._versions import installed_versions
from .commands.parsing import UsageError, parse, usage_errors
from .evaluation import EvaluationResult

MARKER = "phase.json"
SPLITS = ("valid_unseen", "valid_seen")
ROUNDS = 2
EVALUATION_SEED = 1234
# name of the phase whose folder holds the policy -> its name in the tables
POLICIES = {"start": "tiny policy", "sft": "+ skill SFT", "grpo": "+ GRPO", "seed": "+ SEED"}


# ---------------------------------------------------------------------------------------------------------------- phases


class Phases:
    """The folder of a demo: runs a phase unless it is done with the same inputs."""

    def __init__(self, folder: Path, tell: Callable[[str], None] = print):
        self.folder = folder
        self.tell = tell
        self.fingerprints: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def run(
        self,
        name: str,
        title: str,
        inputs: Mapping[str, Any],
        after: Sequence[str],
        work: Callable[[Path], str | None],
        artifacts: Sequence[str],
    ) -> Path:
        """Do a phase, or find it done.

        Args:
            name: of the phase and of its folder.
            title: what a person reads.
            inputs: everything its outcome depends on but earlier phases (JSON values).
            after: earlier phases it builds on.
            work: gets the folder; may find in it what an interrupted run with the same inputs left. Returns a line.
            artifacts: files that must be there for the phase to count as done.

        Returns:
            The phase's folder.

        Raises:
            UsageError: the folder holds something that is not a phase.
        """
        folder = self.folder / name
        depends = {"inputs": dict(inputs), "after": {other: self.fingerprints[other] for other in after}}
        fingerprint = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
        self.fingerprints[name] = fingerprint
        state = self._state(folder)
        same = state.get("fingerprint") == fingerprint
        if same and state.get("done") and all((folder / file).is_file() for file in artifacts):
            self.seconds[name] = state["seconds"]
            self.tell(f"[{name}] {title}: done before")
            return folder
        going_on = same and not state.get("done")
        if folder.exists() and not going_on:
            shutil.rmtree(folder)
        spent = state.get("seconds", 0.0) if going_on else 0.0
        self.tell(f"[{name}] {title}" + (" (going on)" if going_on else ""))
        started = time.perf_counter()

        def mark(done: bool) -> None:
            self.seconds[name] = spent + time.perf_counter() - started
            record = {"fingerprint": fingerprint, "done": done, "seconds": self.seconds[name], **depends}
            write_atomic(folder / MARKER, json.dumps(record, indent=1) + "\n")

        mark(False)
        try:
            line = work(folder)
        except BaseException:
            mark(False)  # the seconds spent so far
            raise
        mark(True)
        self.tell(f"[{name}] {line + ', ' if line else ''}{self.seconds[name]:.0f} s")
        return folder

    def _state(self, folder: Path) -> dict[str, Any]:
        marker = folder / MARKER
        if not marker.is_file():
            if folder.exists() and any(folder.iterdir()):
                raise UsageError(f"{folder} holds files that are no demo's; give another --output_dir")
            return {}
        try:
            return json.loads(marker.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            return {}

    def clear(self, names: Sequence[str]) -> None:
        """Remove the folders of phases that a demo made."""
        for name in names:
            if (self.folder / name / MARKER).is_file():
                shutil.rmtree(self.folder / name)


# ------------------------------------------------------------------------------------------------------------------ demo


def run_demo(
    output_dir: str | Path = "runs/demo",
    *,
    updates: int | None = None,
    seed: int = 0,
    panel: int | None = None,
    collect_tasks: int | None = None,
    fresh: bool = False,
    tell: Callable[[str], None] = print,
) -> Path:
    """Run the demo, or what is left of it.

    Args:
        output_dir: its folder.
        updates: of each training; default the recipes'.
        seed: of both trainings.
        panel: tasks of each held-out panel; default all.
        collect_tasks: tasks that stage 1 learns from; default the recipe's.
        fresh: start over.
        tell: gets the lines for a person.

    Returns:
        The path of the report.
    """
    from .assets import tiny_policy_path
    from .commands.progress import quiet_libraries

    quiet_libraries()
    phases = Phases(Path(output_dir), lambda line: tell(line))
    if fresh:
        phases.clear([*POLICIES, "collect", *(f"rate-{name}" for name in POLICIES)])
    with usage_errors():
        start = tiny_policy_path()
    weights = hashlib.sha256((start / "model.safetensors").read_bytes()).hexdigest()
    versions = {k: v for k, v in installed_versions().items() if k in ("seed_trl", "trl", "transformers", "torch")}
    overrides = ["--seed", str(seed), *(["--max_steps", str(updates)] if updates is not None else [])]

    def inputs(recipe: str, **more: Any) -> dict[str, Any]:
        return {"recipe": recipe_path(f"demo/{recipe}").read_text("utf-8"), "versions": versions, **more}

    def rate(name: str, model: Path, after: Sequence[str]) -> list[EvaluationResult]:
        folder = phases.run(
            f"rate-{name}",
            f"rating {POLICIES[name].removeprefix('+ ')} on held-out rooms",
            inputs("seed", weights=weights, rounds=ROUNDS, panel=panel),
            after,
            lambda folder: _rate(folder, model, POLICIES[name], panel),
            [f"eval_{split}.json" for split in SPLITS],
        )
        return [EvaluationResult.load(folder / f"eval_{split}.json") for split in SPLITS]

    results = {"start": rate("start", start, [])}
    episodes = phases.run(
        "collect",
        "collecting episodes, skills written by rule",
        inputs("collect", weights=weights, tasks=collect_tasks),
        [],
        lambda folder: _collect(folder, start, collect_tasks),
        ["episodes.jsonl"],
    )
    sft = phases.run(
        "sft",
        "skill SFT: from an episode to its skill",
        inputs("sft", weights=weights),
        ["collect"],
        lambda folder: _skill_sft(folder, start, episodes / "episodes.jsonl"),
        ["config.json", "model.safetensors", "skill_sft.json"],
    )
    results["sft"] = rate("sft", sft, ["sft"])
    for name in ("grpo", "seed"):
        trained = phases.run(
            name,
            f"training with {name.upper()}",
            inputs(name, overrides=overrides),
            ["sft"],
            lambda folder, name=name: _train(folder, name, sft, overrides),
            ["config.json", "model.safetensors", "trainer_state.json"],
        )
        results[name] = rate(name, trained, [name])
    report = _report(phases, results, seed)
    tell("\n" + summary_table(results))
    tell(f"\n{comparison(results['grpo'], results['seed'])}")
    tell(f"\n{report}\n{report.with_name('curves.png')}")
    return report


def _rate(folder: Path, model: Path, label: str, panel: int | None) -> str:
    from .commands.arguments import BenchmarkArguments, EpisodeArguments, model_positions, training_keys
    from .commands.evaluate import EvalArguments
    from .evaluation import evaluate, select_panel, weights_fingerprint
    from .policy import load_policy

    args, episodes, benchmark = parse(
        "eval",
        [EvalArguments, EpisodeArguments, BenchmarkArguments],
        ["--config", "demo/seed"],
        also_known=training_keys(),
    )
    bench = benchmark.load()
    policy = load_policy(model)
    policy.max_batch = episodes.rollout_batch_size
    lines = []
    weights = weights_fingerprint(model)
    for split in SPLITS:
        result = evaluate(
            bench,
            select_panel(bench.tasks(split), panel),
            policy,
            episodes.settings(bench, args.eval_temperature, model_positions(policy)),
            rounds=ROUNDS,
            seed=EVALUATION_SEED,
            model=label,
            progress=split if sys.stderr.isatty() else None,
            block=episodes.rollout_batch_size,
            options=benchmark.benchmark_options,
        )
        replace(result, weights=weights).save(folder / f"eval_{split}.json")
        lines.append(f"{split} {100 * result.overall.success:.1f} %")
    return ", ".join(lines)


def _collect(folder: Path, model: Path, tasks: int | None) -> str:
    from .commands import collect

    path = folder / "episodes.jsonl"
    argv = ["--config", "demo/collect", "--model", str(model), "--episodes", str(path)]
    result = collect.play([*argv, *(["--max_train_tasks", str(tasks)] if tasks is not None else [])])
    return collect.describe(result)


def _skill_sft(folder: Path, model: Path, episodes: Path) -> str:
    from .commands import sft

    parsed = sft.parse_arguments(
        ["--config", "demo/sft", "--model_name_or_path", str(model), "--episodes", str(episodes)]
        + ["--output_dir", str(folder)]
    )
    # SFTTrainer prints its log; a minute of it is of use to nobody here
    with open(folder / "train.log", "w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
        result = sft.train(*parsed)
    return sft.describe(result)


def _train(folder: Path, name: str, model: Path, overrides: Sequence[str]) -> None:
    from .commands import train
    from .commands.progress import show_progress
    from .seed_trainer import last_complete_checkpoint

    parsed = train.parse_arguments(
        ["--config", f"demo/{name}", "--model_name_or_path", str(model), "--output_dir", str(folder), *overrides]
    )
    with usage_errors():
        trainer = train.build_trainer(*parsed)
    show_progress(trainer, name)
    checkpoint = last_complete_checkpoint(folder)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
    trainer.save_model(str(folder))
    trainer.save_state()


# ---------------------------------------------------------------------------------------------------------------- report


def summary_table(results: Mapping[str, Sequence[EvaluationResult]]) -> str:
    """Success of each policy on each split, with its 95 % interval, as aligned text."""
    rows = [("policy", *SPLITS)]
    for name, evaluations in results.items():
        cells = [
            f"{100 * e.overall.success:.1f} % ({100 * e.overall.low:.0f}-{100 * e.overall.high:.0f})"
            for e in evaluations
        ]
        rows.append((POLICIES[name], *cells))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def paired_difference(before: EvaluationResult, after: EvaluationResult) -> tuple[float, float]:
    """Mean over tasks of the difference in success, and the half width of its 95 % interval (normal, over tasks).

    Raises:
        ValueError: the two are not on the same panel.
    """
    if before.panel != after.panel:
        raise ValueError(f"panels {before.panel[:12]} and {after.panel[:12]} differ; the two cannot be paired")

    def by_task(result: EvaluationResult) -> dict[str, float]:
        totals: dict[str, list[float]] = {}
        for episode in result.episodes:
            totals.setdefault(episode.task, []).append(float(episode.success))
        return {task: sum(values) / len(values) for task, values in totals.items()}

    first, second = by_task(before), by_task(after)
    differences = [second[task] - first[task] for task in first]
    count = len(differences)
    mean = sum(differences) / count
    if count < 2:
        return mean, math.inf
    variance = sum((d - mean) ** 2 for d in differences) / (count - 1)
    return mean, 1.959964 * math.sqrt(variance / count)


def comparison(grpo: Sequence[EvaluationResult], seed: Sequence[EvaluationResult]) -> str:
    """What the two numbers can and cannot show, whatever they are."""
    parts = []
    for before, after in zip(grpo, seed):
        mean, half = paired_difference(before, after)
        parts.append(
            f"{100 * mean:+.1f} points on {before.split} (95 % interval {100 * (mean - half):+.1f} to {100 * (mean + half):+.1f})"
        )
    return (
        f"SEED minus GRPO: {' and '.join(parts)}, over the tasks of the panel. This is one training run of each. The "
        "interval says how the two trained policies differ; it leaves out how much another seed would change either, "
        "which on a policy of this size is more than these two differ by. It shows that the chain runs and learns, and "
        "nothing about which method is better: for that take five seeds at least, and the controls (a skill of another "
        "task, no skill)."
    )


def measured_over_seeds() -> str:
    """What `benchmarks/learning.py` found with them, as docs/does-it-help.md has it."""
    from .assets import learning_summary

    return f"## Over several seeds, with controls\n\n{learning_summary()} The whole of it: docs/does-it-help.md in the repository."


def _report(phases: Phases, results: Mapping[str, Sequence[EvaluationResult]], seed: int) -> Path:
    from .report import read_run, write_report

    runs = [read_run(phases.folder / name, name.upper()) for name in ("grpo", "seed")]
    skill_sft = json.loads((phases.folder / "sft" / "skill_sft.json").read_text("utf-8"))
    before, after = skill_sft["parse_rate_before"], skill_sft["parse_rate_after"]
    stage_one = (
        f"## Stage 1\n\nThe skill SFT learned from {skill_sft['train_samples']} samples, {skill_sft['act_samples']} of "
        f"them acting turns. Of its greedy answers to held-out analysis prompts {before:.0%} held a skill before and "
        f"{after:.0%} after."
        if after is not None
        else ""
    )
    clock = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in phases.seconds.items())
    notes = [
        stage_one,
        "## What this shows\n\n" + comparison(results["grpo"], results["seed"]),
        f"Both trainings start from the same weights, with seed {seed} and recipes that differ in `algorithm` alone.",
        measured_over_seeds(),
        f"Seconds: {clock}.",
    ]
    evaluations = [evaluation for of_policy in results.values() for evaluation in of_policy]
    return write_report(
        runs, phases.folder, title="Demo: GRPO and SEED on a tiny policy", notes=notes, evaluations=evaluations
    )
