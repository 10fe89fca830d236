"""Model cards: metadata that the Hub accepts, measured numbers from evaluation files alone, published ones marked as such."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from support.hub_server import metadata_errors

from seed_trl._files import list_recipes
from seed_trl.evaluation import Episode, EvaluationResult, summarize_episodes, weights_fingerprint
from seed_trl.hub.names import BASE_LICENSES, CHECKPOINTS, find_checkpoint, resolve
from seed_trl.hub.record import RunRecord
from seed_trl.hub.run_files import RunContents
from seed_trl.model_card import _evaluations, model_cards_dir, paper_card, run_card
from seed_trl.report import Run
from seed_trl.types import Task

RECIPE = {
    "benchmark": "alfworld",
    "benchmark_options": {"published": "seed"},
    "model_name_or_path": "Qwen/Qwen2.5-3B-Instruct",
    "algorithm": "seed",
    "context": "steps",
    "max_env_steps": 30,
    "history_length": 5,
    "max_completion_length": 512,
    "learning_rate": 1e-6,
    "max_steps": 150,
    "opd_weight": 0.01,
    "temperature": 1.0,
    "eval_temperature": 0.4,
}


def evaluation(solved: int = 3, temperature: float = 0.4, games: str = "official", split: str = "valid_unseen"):
    tasks = [Task(f"t{k}", "heat" if k < 4 else "cool", split, "do it") for k in range(6)]
    episodes = [
        Episode(t.id, t.family, 0, k < solved, 10.0 * (k < solved), 9, 0, 90, "done") for k, t in enumerate(tasks)
    ]
    settings = {"temperature": temperature, "max_steps": 30, "history_length": 5, "games": games, "grammar": "put"}
    more = {"benchmark": "alfworld", "split": split, "model": "m", "rounds": 1, "seconds": 1.0}
    return summarize_episodes(episodes, tasks=tasks, settings=settings, **more)


def contents(*evaluations: EvaluationResult, recipe: dict | None = None, **changes) -> RunContents:
    record = RunRecord("train", {**RECIPE, **(recipe or {})}, "Qwen/Qwen2.5-3B-Instruct", versions={"trl": "1.16.0"})
    log = [{"step": n, "reward": 1.0, "rollout/success": 0.1} for n in range(1, 11)]
    made = {"record": record, "run": Run("a", Path("a"), log), "sft": None, "base_model": record.base_model}
    return RunContents("a", evaluations=evaluations, adapter=False, **{**made, **changes})


def metadata(card: ModelCard) -> dict:
    return yaml.safe_load(re.match(r"---\n(.*?)\n---", str(card), re.S)[1])


# ----------------------------------------------------------------------------------------------------------- of a run


def test_a_runs_card_has_metadata_that_the_hub_accepts_and_its_client_reads_back():
    card = run_card(contents(evaluation()), "me/a", datasets=["me/kitchens"], tags=["mine"])
    assert metadata_errors(str(card)) == []
    data = ModelCard(str(card)).data
    assert (data.base_model, data.library_name, data.pipeline_tag) == (
        "Qwen/Qwen2.5-3B-Instruct",
        "transformers",
        "text-generation",
    )
    assert (data.license, data.license_name) == ("other", "qwen-research")
    assert data.datasets == ["me/kitchens"] and {"trl", "seed", "alfworld", "arxiv:2607.14777", "mine"} <= set(
        data.tags
    )


def test_the_model_index_holds_the_evaluations_numbers():
    card = run_card(contents(evaluation(3), evaluation(6, split="valid_seen")), "me/a")
    found = {
        (r.dataset_split, r.metric_name): (r.metric_type, r.metric_value)
        for r in ModelCard(str(card)).data.eval_results
    }
    assert found == {
        ("valid_unseen", "success rate"): ("accuracy", 0.5),
        ("valid_unseen", "success rate, mean over families"): ("accuracy", 0.375),
        ("valid_seen", "success rate"): ("accuracy", 1.0),
        ("valid_seen", "success rate, mean over families"): ("accuracy", 1.0),
    }
    (entry, *_) = metadata(card)["model-index"][0]["results"]
    assert entry["dataset"] == {"name": "ALFWorld", "type": "alfworld", "config": "official", "split": "valid_unseen"}
    assert entry["metrics"][0]["args"]["temperature"] == 0.4
    assert entry["metrics"][0]["args"]["panel"] == evaluation().panel
    assert metadata(card)["metrics"] == ["accuracy"]


def test_two_evaluations_of_one_split_keep_their_own_settings():
    card = run_card(contents(evaluation(3), evaluation(1, temperature=0.0)), "me/a")
    metrics = [
        m for r in metadata(card)["model-index"][0]["results"] for m in r["metrics"] if m["name"] == "success rate"
    ]
    assert [(m["value"], m["args"]["temperature"]) for m in metrics] == [(0.5, 0.4), (0.1667, 0.0)]


def test_without_an_evaluation_nothing_is_claimed():
    card = run_card(contents(), "me/a")
    assert not {"model-index", "metrics"} & set(metadata(card)) and metadata_errors(str(card)) == []
    assert "Nothing: no evaluation file lay in the run's folder" in str(card)
    assert "Nothing is known of how well it plays" in str(card)


def test_no_published_number_is_on_the_card_of_a_run():
    text = str(run_card(contents(evaluation(2)), "me/a"))
    numbers = {str(n) for c in CHECKPOINTS for p in c.published for n in (p.grpo, p.seed, p.untrained) if n}
    assert not [n for n in numbers - {"100.0"} if re.search(rf"(?<![\d.]){re.escape(n)}(?![\d.])", text)]


def test_a_card_says_how_to_run_it_its_settings_its_limits_and_whom_to_cite():
    text = str(run_card(contents(evaluation()), "me/a"))
    for told in (
        "**Inference uses no skill.**",
        "seed-trl eval --model me/a",
        'from_pretrained("me/a"',
        "max_new_tokens=512",
        "| horizon, history | 30, 5 |",
        "| learning rate | 1e-06 |",
        "| distillation: weight, gate, term | 0.01 |",
        "| m | valid_unseen | 3 of 6 | 50.0 % |",
        "| heat | 3 of 4 |",
        "Versions: trl 1.16.0.",
        "(rated under `put`)",
        "arXiv:2607.14777",
        "@software{vonwerra2020trl",
    ):
        assert told in text, told
    assert "{%" not in text and "{#" not in text and "None" not in text


def test_a_grpo_runs_card_speaks_of_no_distillation():
    text = str(run_card(contents(evaluation(), recipe={"algorithm": "grpo"}), "me/a"))
    assert "trained as an agent on ALFWorld by GRPO" in text and "distillation: weight" not in text
    assert "grpo" in metadata(run_card(contents(recipe={"algorithm": "grpo"})))["tags"]


def test_a_skill_sfts_card_tells_what_it_did():
    result = {"train_samples": 90, "steps": 30, "train_loss": 0.5, "validation_loss_before": 2.0}
    result |= {"validation_loss_after": 0.7, "parse_rate_before": 0.1, "parse_rate_after": 0.9}
    record = RunRecord("sft", RECIPE, "Qwen/Qwen2.5-3B-Instruct")
    text = str(run_card(contents(record=record, sft=result), "me/a"))
    assert "to write hindsight skills: stage 1 of SEED" in text
    assert "90 samples, 30 steps, training loss 0.500." in text
    assert "Held-out answers with a readable skill 10% before, 90% after." in text
    assert "Means of the last tenth" not in text


def test_generated_rooms_are_told_from_official_games():
    text = str(run_card(contents(evaluation(games="generated small, seed 0")), "me/a"))
    assert "rated on generated rooms, not on official games: its numbers compare with no published ones" in text


def test_a_run_without_a_hub_model_at_its_start_claims_no_base_and_no_license():
    data = metadata(run_card(contents(base_model=None), "me/a"))
    assert not {"base_model", "base_model_relation", "license"} & set(data)
    assert metadata(run_card(contents(base_model=None), "me/a", license="mit"))["license"] == "mit"


# ------------------------------------------------------------------------------------------ of the paper's checkpoints


def test_every_checkpoint_has_the_card_that_the_table_gives():
    for checkpoint in CHECKPOINTS:
        path = model_cards_dir() / f"{checkpoint.name}.md"
        assert path.read_text(encoding="utf-8") == str(paper_card(checkpoint)), "run scripts/write_model_cards.py"


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=lambda c: c.name)
def test_a_papers_card_marks_published_numbers_and_measures_nothing(checkpoint):
    text = str(paper_card(checkpoint))
    assert metadata_errors(text) == []
    data = ModelCard(text).data
    assert data.base_model == checkpoint.base_model and data.eval_results is None
    assert data.license == BASE_LICENSES[checkpoint.base_model]["license"]
    assert "**Inference uses no skill.**" in text and "## Measured here\n\nNothing." in text
    measured = text.index("## Measured here")
    for number in checkpoint.published:
        row = f"{number.grpo} | {number.seed} |"
        assert "**none of them was measured here**" in text and text.index(row) < measured
    if checkpoint.repo_id is None:
        assert "no released ones are known" in text
    else:
        assert f"seed-trl eval --model {checkpoint.name}" in text
    assert "{%" not in text and "None" not in text.replace("None is known", "")


def test_the_recipes_that_cards_name_are_there():
    assert {c.recipe for c in CHECKPOINTS} - {None} <= set(list_recipes())


def test_the_published_numbers_are_those_of_the_paper():
    found = {c.name: [(p.grpo, p.seed) for p in c.published] for c in CHECKPOINTS}
    assert found == {
        "Seed-AlfWorld-3B": [(75.0, 91.8), (70.9, 86.2)],
        "SEED-ALFWorld-3B-SFT": [],
        "Seed-WebShop-3B": [(79.8, 88.5), (63.3, 78.9)],
        "Seed-Search-3B": [(36.4, 45.7)],
        "Seed-AlfWorld-7B": [(81.2, 96.1)],
        "Seed-WebShop-7B": [(80.9, 89.7), (72.6, 78.1)],
        "Seed-Search-7B": [(42.0, 48.6)],
        "Seed-AlfWorld-Qwen3-1.7B": [(46.1, 92.0)],
        "Seed-WebShop-Qwen3-1.7B": [(67.3, 87.1), (38.3, 77.3)],
        "Seed-Search-Qwen3-1.7B": [(40.8, 42.2)],
        "Seed-Sokoban-VL-3B": [(67.1, 82.0)],
        "Seed-EZPoints-VL-3B": [(86.9, 100.0)],
    }
    untrained = {p.metric: p.untrained for c in CHECKPOINTS for p in c.published if p.untrained is not None}
    assert list(untrained.values()) == [21.9, 6.7, 0.8, 31.7]


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "repo_id"),
    [
        ("Seed-AlfWorld-3B", "Jinyang23/Seed-AlfWorld-3B"),
        ("seed-alfworld-3b", "Jinyang23/Seed-AlfWorld-3B"),
        ("SEED-ALFWorld-3B-SFT", "Jinyang23/SEED-ALFWorld-3B-SFT"),
        ("Jinyang23/Seed-AlfWorld-3B", "Jinyang23/Seed-AlfWorld-3B"),
        ("anybody/anything-1.0", "anybody/anything-1.0"),
    ],
)
def test_names_stand_for_repositories(name, repo_id):
    assert resolve(name) == repo_id


@pytest.mark.parametrize("name", ["anything", "a/b/c", "a/..b", "a/b--c", ""])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="no short name and no USER/NAME|is no repository"):
        resolve(name)


def test_a_released_checkpoint_is_found_by_its_repository_too():
    assert find_checkpoint("jinyang23/seed-alfworld-3b").stage == "seed"
    assert find_checkpoint("Qwen/Qwen2.5-3B-Instruct") is None


# ---------------------------------------------------------------------------------------------------------- of a trainer


def test_a_trainer_writes_a_card_of_its_own_settings_beside_its_checkpoints(tmp_path):
    from toy import ScriptedPolicy, ToyBenchmark, toy_model, toy_tokenizer

    from seed_trl import SEEDConfig, SEEDTrainer

    tokenizer = toy_tokenizer()
    toy_model(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    args = SEEDConfig(
        str(tmp_path / "run"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        save_steps=1,
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        skill_source="rule",
        skill_assignment="shuffled",
        opd_scope="step",
        opd_variant="centered",
        opd_weight=0.05,
        hub_token="hf_abcdefghijklmnopqrstuvwxyz",
    )
    trainer = SEEDTrainer(str(tmp_path / "model"), args, ToyBenchmark(), processing_class=tokenizer)
    trainer.policy = ScriptedPolicy(tokenizer)
    trainer.train()
    text = (tmp_path / "run" / "README.md").read_text()
    assert metadata_errors(text) == []
    assert "# run" in text and "trained as an agent on toy by SEED" in text
    assert (
        "| distillation: weight, gate, term | 0.05, 5, centered |\n| distillation: a shift is of a | step |\n" in text
    )
    assert "| skills written by | rule |\n| skill shown to the teacher | shuffled |\n" in text
    assert str(tmp_path) not in text and "hf_abc" not in text
    assert "base_model" not in text


def test_the_card_of_a_training_leaves_evaluations_of_other_weights_out(tmp_path, caplog):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    replace(evaluation(3), weights=weights_fingerprint(tmp_path)).save(tmp_path / "eval-these.json")
    replace(evaluation(5), weights="0" * 64).save(tmp_path / "eval-others.json")
    (found,) = _evaluations(tmp_path, "a")
    assert (found.model, found.overall.successes) == ("a", 3)
    assert "eval-others.json is of other weights" in caplog.text
