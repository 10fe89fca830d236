"""Model cards: of a run that is pushed, and of the paper's checkpoints.

A run's card is generated and nothing in it is written by hand: settings from the run's record, measured numbers from
evaluation files alone, published numbers only on the cards of the paper's own checkpoints, and marked as such there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._versions import installed_versions
from .evaluation import EvaluationResult, of_other_weights, weight_files
from .hub.names import BASE_LICENSES, PAPER_ID, Checkpoint
from .hub.record import RunRecord, given_keys, public_record, read_record
from .hub.run_files import RunContents
from .report import Run, evaluation_table, family_table, newest_checkpoint, training_table

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

logger = logging.getLogger(__name__)

TAGS = ("trl", "seed", "seed_trl", "agents", "reinforcement-learning")

_TITLES = {
    "alfworld": "ALFWorld",
    "webshop": "WebShop",
    "search": "Search QA",
    "sokoban": "Sokoban",
    "ezpoints": "EZPoints",
}
# rows of the settings table: label, keys of the recipe
_SETTINGS = (
    ("start", ("model_name_or_path",)),
    ("benchmark", ("benchmark", "benchmark_options")),
    ("context", ("context",)),
    ("horizon, history", ("max_env_steps", "history_length")),
    ("prompt, reply tokens", ("max_prompt_length", "max_completion_length")),
    ("updates", ("max_steps",)),
    ("epochs", ("num_train_epochs",)),
    ("episodes a task", ("num_generations",)),
    ("batch a device, accumulation", ("per_device_train_batch_size", "gradient_accumulation_steps")),
    ("learning rate", ("learning_rate",)),
    ("KL coefficient", ("beta",)),
    ("loss", ("loss_type",)),
    ("distillation: weight, gate, term", ("opd_weight", "opd_beta", "opd_variant")),
    ("distillation: updates until its weight is 0", ("opd_weight_decay_steps",)),
    ("distillation: a shift is of a", ("opd_scope",)),
    ("distillation: tokens, rows", ("opd_tokens", "opd_rows")),
    ("distillation: gate turned around on failures", ("opd_polarity",)),
    ("skills written by", ("skill_source",)),
    ("skill shown to the teacher", ("skill_assignment",)),
    ("adapter", ("use_peft", "lora_r", "lora_alpha")),
    ("temperature: training, evaluation", ("temperature", "eval_temperature")),
    ("seed", ("seed",)),
)
_GRPO_LEAVES_OUT = {key for label, keys in _SETTINGS if label.startswith(("distillation", "skill")) for key in keys}


def model_cards_dir() -> Path:
    """The folder of templates: inside the installed package, or at the root of a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "model_cards", package.parent / "model_cards"):
        if (folder / "template.md").is_file():
            return folder
    raise FileNotFoundError(f"no model_cards beside {package}; reinstall seed_trl")


def _render(template: str, **values: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=False, keep_trailing_newline=True)
    text = environment.from_string((model_cards_dir() / template).read_text(encoding="utf-8")).render(**values)
    lines = [line.rstrip() for line in text.splitlines()]
    # an absent part leaves its blank lines behind
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).strip() + "\n"


# --------------------------------------------------------------------------------------------------------- of a run


def run_card(
    contents: RunContents,
    repo_id: str | None = None,
    license: str | None = None,
    datasets: Sequence[str] = (),
    tags: Iterable[str] = (),
) -> ModelCard:
    """The card of a run's checkpoint.

    Args:
        contents: what the run is and what was measured of it.
        repo_id: of the repository, for the commands that use it.
        license: Hub name of one; default the base model's.
        datasets: Hub datasets that it was trained on.
        tags: besides the package's own.

    Returns:
        A `ModelCard` whose metadata the Hub accepts.
    """
    from huggingface_hub import ModelCard

    record = contents.record
    recipe = {**record.acting, **record.recipe} if record is not None else {}
    trained = contents.run is not None and contents.run.history and _method(contents) != "sft"
    benchmark = recipe.get("benchmark") or next((e.benchmark for e in contents.evaluations), None)
    body = _render(
        "template.md",
        name=contents.name,
        repo_id=repo_id,
        summary=_summary(contents, benchmark),
        benchmark=benchmark,
        adapter=contents.adapter,
        max_new_tokens=recipe.get("max_completion_length") or 512,
        evaluations=contents.evaluations,
        evaluation_table=evaluation_table(contents.evaluations),
        evaluation_notes=[_evaluation_note(e) for e in contents.evaluations],
        family_table=family_table(contents.evaluations),
        training=_training(contents, benchmark),
        settings_table=_settings_table(recipe),
        curves=contents.curves,
        outcome_table=training_table([contents.run]) if trained else "",
        versions=_versions(record),
        limits=_limits(contents, benchmark),
    )
    data = _metadata(contents, benchmark, license, datasets, tags)
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}")


def _metadata(contents: RunContents, benchmark: str | None, license: str | None, datasets, tags):
    from huggingface_hub import ModelCardData

    base = contents.base_model
    licensed = {"license": license} if license else dict(BASE_LICENSES.get(base or "", {}))
    method = {"sft": "sft", "grpo": "grpo"}.get(_method(contents), "seed")
    found = [*TAGS, f"arxiv:{PAPER_ID}", *([benchmark] if benchmark else []), method, *tags]
    more = {"base_model_relation": "adapter" if contents.adapter else "finetune"} if base else {}
    if contents.evaluations:
        more["metrics"] = ["accuracy"]
        more["eval_results"] = eval_results(contents.evaluations)
    return ModelCardData(
        model_name=contents.name,
        base_model=base,
        library_name="peft" if contents.adapter else "transformers",
        pipeline_tag="image-text-to-text" if contents.vision else "text-generation",
        tags=list(dict.fromkeys(found)),
        datasets=list(datasets) or None,
        **licensed,
        **more,
    )


def eval_results(evaluations: Sequence[EvaluationResult]) -> list[Any]:
    """A model index's entries: success over episodes, and the mean over families, both from 0 to 1."""
    from huggingface_hub import EvalResult

    entries = []
    for e in evaluations:
        settings = {"panel": e.panel, "tasks": e.tasks, "rounds": e.rounds}
        for key in ("temperature", "max_steps", "history_length", "context", "grammar"):
            if e.settings.get(key) is not None:
                settings[key] = e.settings[key]
        numbers = [("success rate", e.overall.success)]
        if len(e.families) > 1:
            numbers.append(("success rate, mean over families", e.macro_success))
        for name, value in numbers:
            entries.append(
                EvalResult(
                    task_type="text-generation",
                    task_name="playing episodes",
                    dataset_type=e.benchmark,
                    dataset_name=_TITLES.get(e.benchmark, e.benchmark),
                    dataset_config=e.settings.get("games"),
                    dataset_split=e.split,
                    metric_type="accuracy",
                    metric_name=name,
                    metric_value=round(value, 4),
                    metric_args=settings,
                )
            )
    return entries


def _method(contents: RunContents) -> str:
    record = contents.record
    if record is not None and record.stage == "sft" or record is None and contents.sft is not None:
        return "sft"
    return str((record.recipe.get("algorithm") if record is not None else None) or "seed")


def _summary(contents: RunContents, benchmark: str | None) -> str:
    start = f"[{contents.base_model}](https://huggingface.co/{contents.base_model})" if contents.base_model else None
    what = "A LoRA adapter" if contents.adapter else "A language model"
    size = f" ({contents.parameters:,} parameters)" if contents.parameters else ""
    place = f" on {_TITLES.get(benchmark, benchmark)}" if benchmark else ""
    how = {
        "sft": f"fine-tuned{place} to write hindsight skills: stage 1 of SEED, a start for the second stage",
        "grpo": f"trained as an agent{place} by GRPO",
    }.get(_method(contents), f"trained as an agent{place} by SEED, self-evolving on-policy distillation")
    paper = f"([arXiv {PAPER_ID}](https://arxiv.org/abs/{PAPER_ID}))"
    origin = f", from {start}" if start else ""
    return f"{what}{size}, {how} {paper}, with seed_trl on TRL{origin}."


def _evaluation_note(e: EvaluationResult) -> str:
    s = e.settings
    told = [f"{e.tasks} tasks", f"{e.rounds} round{'s' * (e.rounds != 1)}", f"panel `{e.panel[:12]}`"]
    for label, key in (("temperature", "temperature"), ("horizon", "max_steps"), ("history", "history_length")):
        if s.get(key) is not None:
            told.append(f"{label} {s[key]}")
    for key in ("context", "games", "grammar", "prompt_template"):
        if s.get(key) is not None:
            value = str(s[key])
            told.append(f"{key.replace('_', ' ')} {value if len(value) < 40 else value[:12]}")
    return f"{_TITLES.get(e.benchmark, e.benchmark)} {e.split}: {', '.join(told)}."


def _training(contents: RunContents, benchmark: str | None) -> str:
    method = _method(contents)
    if method == "sft":
        lines = [
            "Skill SFT: from finished episodes to the JSON with their summary and hindsight skill, loss on the answer."
        ]
        if contents.sft:
            s = contents.sft
            lines.append(f"{s['train_samples']} samples, {s['steps']} steps, training loss {s['train_loss']:.3f}.")
            if s.get("validation_loss_after") is not None:
                lines.append(
                    f"Held-out loss {s['validation_loss_before']:.3f} before, {s['validation_loss_after']:.3f} after."
                )
            if s.get("parse_rate_after") is not None:
                lines.append(
                    f"Held-out answers with a readable skill {s['parse_rate_before']:.0%} before, {s['parse_rate_after']:.0%} after."
                )
        return " ".join(lines)
    text = (
        "GRPO over whole episodes."
        if method == "grpo"
        else "Episodes are played, analyzed into hindsight skills and scored again under them; the policy is updated on GRPO's "
        "loss plus the weighted distillation term."
    )
    if contents.record is not None:
        text += " Every setting is in `recipe.yaml`, which `seed-trl train --config recipe.yaml` takes."
    return text


def _settings_table(recipe: Mapping[str, Any]) -> str:
    rows = []
    for label, keys in _SETTINGS:
        if recipe.get("algorithm") == "grpo":
            keys = tuple(key for key in keys if key not in _GRPO_LEAVES_OUT)
        if keys == ("max_steps",) and (recipe.get("max_steps") or -1) < 0:
            continue
        if keys == ("num_train_epochs",) and (recipe.get("max_steps") or -1) > 0:
            continue
        values = [_cell(recipe[key]) for key in keys if recipe.get(key) not in (None, {}, [])]
        if values:
            rows.append(f"| {label} | {', '.join(values)} |")
    return "\n".join(["| setting | value |", "|---|---|", *rows]) if rows else ""


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return "`" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "`"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _versions(record: RunRecord | None) -> str:
    recorded = record.versions if record is not None else None
    found = ", ".join(f"{name} {version}" for name, version in (recorded or installed_versions()).items())
    return f"Versions: {found}" if recorded else f"Versions where this card was written: {found}"


def _limits(contents: RunContents, benchmark: str | None) -> list[str]:
    place = _TITLES.get(benchmark, benchmark) if benchmark else "its benchmark"
    lines = [
        f"It was trained on the tasks and the action format of {place}; expect nothing of it elsewhere.",
        "What it thinks aloud was not judged and may be wrong.",
        "No work on safety went into it beyond its base model's.",
    ]
    if any(str(e.settings.get("games", "")).startswith("generated") for e in contents.evaluations):
        lines.insert(
            0, "It was rated on generated rooms, not on official games: its numbers compare with no published ones."
        )
    if benchmark == "alfworld":
        grammars = sorted({str(e.settings["grammar"]) for e in contents.evaluations if e.settings.get("grammar")})
        known = f" (rated under `{'`, `'.join(grammars)}`)" if grammars else ""
        lines.append(
            f"ALFWorld has two action grammars, `move` and `put`; a policy of one fails under the other{known}."
        )
    if not contents.evaluations:
        lines.insert(0, "Nothing is known of how well it plays: it has not been rated.")
    return lines


# ---------------------------------------------------------------------------------------------------- of a trainer


def trainer_card(trainer: Any, model_name: str | None = None, tags: Iterable[str] = ()) -> ModelCard:
    """The card of a `SEEDTrainer` in training: for TRL's own pushes and for the output folder."""
    args = trainer.args
    folder = Path(args.output_dir)
    record = read_record(folder)
    if record is None:
        recipe = {"benchmark": trainer.benchmark.name, **given_keys(args)}
        record = RunRecord("train", recipe, _base_of_trainer(trainer), versions=installed_versions())
    name = model_name or folder.name
    history = [dict(entry) for entry in trainer.state.log_history]
    contents = RunContents(
        name=name,
        record=public_record(record, name),
        run=Run(name, folder, history) if history else None,
        evaluations=tuple(_evaluations(folder, name)),
        sft=None,
        base_model=record.base_model or _base_of_trainer(trainer),
        adapter=hasattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config"),
        parameters=None,
    )
    return run_card(contents, repo_id=args.hub_model_id if args.push_to_hub else None, tags=tags)


def _evaluations(folder: Path, name: str) -> list[EvaluationResult]:
    """The folder's results, but those of other weights than its own (while it has none: its newest checkpoint's)."""
    from dataclasses import replace

    source = folder if weight_files(folder) else newest_checkpoint(folder) or folder
    found = []
    for path in sorted(folder.glob("eval*.json")):
        result = EvaluationResult.load(path)
        if (why := of_other_weights(path, result, source)) is not None:
            logger.warning("model card: %s", why)
            continue
        found.append(replace(result, model=name))
    return found


def _base_of_trainer(trainer: Any) -> str | None:
    from .hub.record import base_of

    return base_of(getattr(trainer.model.config, "_name_or_path", None))


# ------------------------------------------------------------------------------------------- of the paper's checkpoints

# arXiv 2607.14777, as its released implementation computes it: (tasks x episodes, prompt / reply tokens, horizon / history,
# rows an optimizer step, KL, penalty of an invalid action, updates, return)
_PUBLISHED_SETTINGS = {
    "alfworld": ("16 x 8", "2,048 / 512", "30 / 5", "256", "0.01", "0.1", "150", "10 when won"),
    "webshop": ("16 x 8", "4,096 / 512", "15 / 2", "64", "0.01", "0.1", "150", "10 when the score is exactly 1"),
    "search": ("128 x 8", "4,096 / 512", "4 / 4", "512", "0.001", "0.01", "150, 10 % warm-up", "exact match, 1 or 0"),
    "sokoban": ("32 x 8", "1,024 / 512", "15 / 2", "64", "0.01", "0.1", "150", "10 when solved"),
    "ezpoints": ("16 x 8", "1,024 / 512", "8 / 2", "128", "0.01", "0.1", "100", "10 when solved"),
}
_PUBLISHED_ROWS = (
    "tasks x episodes an update",
    "prompt / reply tokens",
    "horizon / history",
    "rows an optimizer step",
    "KL coefficient",
    "penalty of an invalid action",
    "updates",
    "return",
)
_SFT_SETTINGS = (
    ("episodes", "180 tasks (30 of each family) x 8 of the untrained policy, temperature 0.4"),
    ("skills written by", "GLM-5.2, temperature 0, at most 1,024 tokens"),
    ("epochs", "3"),
    ("batch", "8"),
    ("learning rate", "5e-6"),
    ("tokens of a sample", "8,192"),
    ("validation split", "10 %"),
    ("seed", "2026"),
)


def paper_card(checkpoint: Checkpoint) -> ModelCard:
    """The card of one of the paper's checkpoints: published settings and numbers, nothing measured, no model index."""
    from huggingface_hub import ModelCard, ModelCardData

    c = checkpoint
    data = ModelCardData(
        base_model=c.base_model,
        base_model_relation="finetune",
        library_name="transformers",
        pipeline_tag="image-text-to-text" if c.vision else "text-generation",
        tags=["seed", "agents", "reinforcement-learning", f"arxiv:{PAPER_ID}", c.benchmark],
        **BASE_LICENSES[c.base_model],
    )
    body = _render(
        "paper-template.md",
        c=c,
        what=_paper_summary(c),
        settings=_paper_settings(c),
        settings_table=_paper_settings_table(c),
        published_table=_published_table(c),
        published_note=_published_note(c),
        limits=_paper_limits(c),
    )
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}")


def _paper_summary(c: Checkpoint) -> str:
    base = f"[{c.base_model}](https://huggingface.co/{c.base_model})"
    if c.stage == "sft":
        return (
            f"{base} after stage 1 of SEED on {c.title}: fine-tuned on hindsight skills that an outside model wrote for its "
            "own episodes, so that it can act and analyze. The start of the second stage, not a final agent."
        )
    return f"{base} trained with SEED to play {c.title}: skill SFT, then RL with self-evolving on-policy distillation."


def _paper_settings(c: Checkpoint) -> str:
    return "; ".join(
        f"{key} {_cell(value)}" if not isinstance(value, Mapping) else f"{key} {_cell(value)}"
        for key, value in c.settings.items()
    )


def _paper_settings_table(c: Checkpoint) -> str:
    if c.stage == "sft":
        rows = list(_SFT_SETTINGS)
    else:
        rows = list(zip(_PUBLISHED_ROWS, _PUBLISHED_SETTINGS[c.benchmark]))
        rows += [
            ("learning rate", "1e-6"),
            ("clip, dual clip", "0.2, 3.0"),
            ("distillation: weight, gate", "0.01, 5"),
            ("temperature: training, evaluation", "1.0, 0.4"),
        ]
    return "\n".join(["| setting | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _published_table(c: Checkpoint) -> str:
    with_start = any(p.untrained is not None for p in c.published)
    lines = [
        "| published metric | " + ("untrained | " if with_start else "") + "GRPO | SEED (this checkpoint) |",
        "|---|" + "---:|" * (3 if with_start else 2),
    ]
    for p in c.published:
        start = f" {'' if p.untrained is None else p.untrained} |" if with_start else ""
        lines.append(f"| {p.metric} |{start} {p.grpo} | {p.seed} |")
    return "\n".join(lines)


def _published_note(c: Checkpoint) -> str:
    if c.benchmark == "alfworld":
        return (
            "The published GRPO and SEED rows were played under different episodes (50 steps with 2 pairs of history, 30 with 5): "
            "their difference mixes method and setting."
        )
    same = "Both rows were trained under the same horizon and history"
    return (
        f"{same}, SEED with 512 rows an optimizer step and GRPO with 256." if c.benchmark == "search" else f"{same}."
    )


def _paper_limits(c: Checkpoint) -> list[str]:
    return [
        f"It was trained on the tasks and the action format of {c.title}; expect nothing of it elsewhere.",
        "Independent short runs of the method were within noise of GRPO; claim nothing from fewer than five seeds.",
        f"Its weights stay under the license of {c.base_model}.",
    ]


__all__ = ["eval_results", "model_cards_dir", "paper_card", "run_card", "trainer_card"]
