"""SEEDTrainer on a toy benchmark: the exact statements of the method."""

from __future__ import annotations

import itertools

import pytest
import torch
from toy import ScriptedPolicy, ToyBenchmark, toy_model, toy_tokenizer

from seed_trl import SEEDConfig, SEEDTrainer
from seed_trl.analysis import FileAnalyzer
from seed_trl.policy import Sampling


@pytest.fixture(scope="module")
def tokenizer():
    return toy_tokenizer()


@pytest.fixture(scope="module")
def model_dir(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy-model")
    toy_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def settings(tmp_path, **changes) -> SEEDConfig:
    options = {
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_steps": 3,
        "beta": 0.0,
        "analyzer_max_tokens": 16,
        "analyzer_max_context": 400,
        "skill_source": "rule",
        "seed": 3,
    }
    return SEEDConfig(str(tmp_path), **{**options, **changes})


def make_trainer(model_dir, tokenizer, tmp_path, bench=None, scripted=True, **changes) -> SEEDTrainer:
    trainer = SEEDTrainer(
        model=model_dir,
        args=settings(tmp_path, **changes),
        benchmark=bench or ToyBenchmark(),
        processing_class=tokenizer,
    )
    if scripted:
        trainer.policy = ScriptedPolicy(tokenizer)
    return trainer


def parameters(trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def logged(trainer, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


# ------------------------------------------------------------------------------------------------ against plain GRPO


def test_without_distillation_it_is_plain_grpo(model_dir, tokenizer, tmp_path):
    """Single-turn rows, the same replies: TRL's trainer and ours give the same losses and the same parameters."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    bench = ToyBenchmark(length=1)
    ours = make_trainer(
        model_dir, tokenizer, tmp_path / "ours", bench, algorithm="grpo", advantage_eps=1e-4,
        invalid_action_penalty=0.0, beta=0.02, delta=None, per_device_train_batch_size=8, gradient_accumulation_steps=1,
    )  # fmt: skip
    ours.train()

    replies = ScriptedPolicy(tokenizer)
    tasks = bench.tasks("train")

    def recorded(prompts, trainer):
        ids = [ours.chat.prompt_ids(prompt) for prompt in prompts]
        completions = replies.generate(ids, Sampling(max_tokens=6))
        return {
            "prompt_ids": ids,
            "completion_ids": [completion.ids for completion in completions],
            "logprobs": [completion.logps for completion in completions],
        }

    def reward(prompts, completions, number, **kwargs):
        return [10.0 * (str(n) in text.split()) for text, n in zip(completions, number)]

    views = [ours.benchmark.prompt(_first_view(bench, task)) for task in tasks]
    theirs = GRPOTrainer(
        model=model_dir,
        reward_funcs=[reward],
        args=GRPOConfig(
            str(tmp_path / "theirs"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            learning_rate=1e-2,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            num_generations=4,
            max_steps=3,
            beta=0.02,
            max_completion_length=6,
            seed=3,
            logging_steps=1,
            disable_dropout=True,
            use_bias_correction_kl=False,
        ),  # fmt: skip
        train_dataset=Dataset.from_dict({"prompt": views, "number": [task.payload["number"] for task in tasks]}),
        processing_class=tokenizer,
        rollout_func=recorded,
    )
    theirs.train()
    assert all(value > 0 for value in logged(ours, "grad_norm")), "a run without a gradient compares nothing"
    for key in ("loss", "grad_norm", "reward", "reward_std", "kl", "entropy", "num_tokens", "frac_reward_zero_std"):
        assert len(logged(ours, key)) == 3
        assert logged(ours, key) == pytest.approx(logged(theirs, key), rel=2e-6, abs=1e-6), key
    assert (parameters(ours) - parameters(theirs)).abs().max() < 2e-6


def _first_view(bench, task):
    from seed_trl.types import View

    return View(task, bench.make_env().reset(task))


# ------------------------------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize("context", ["steps", "transcript"])
def test_a_step_does_not_depend_on_how_its_rows_are_split(model_dir, tokenizer, tmp_path, context):
    results = []
    for parts in (1, 2, 4):
        trainer = make_trainer(
            model_dir, tokenizer, tmp_path / str(parts), context=context, opd_weight=1.0, max_steps=1,
            per_device_train_batch_size=16 // parts, gradient_accumulation_steps=parts, beta=0.02,
            optim="sgd", learning_rate=1.0,
        )  # fmt: skip
        trainer.train()
        assert logged(trainer, "opd/active_share") == [1.0]
        results.append((parameters(trainer), logged(trainer, "grad_norm")[0]))
    for (left, left_norm), (right, right_norm) in itertools.combinations(results, 2):
        assert left_norm == pytest.approx(right_norm, rel=1e-5)
        assert torch.allclose(left, right, atol=1e-5)
    untouched = torch.cat([p.detach().flatten() for p in toy_model(tokenizer).parameters()])
    assert not torch.allclose(results[0][0], untouched, atol=1e-3)


@pytest.mark.parametrize("context", ["steps", "transcript"])
@pytest.mark.parametrize("loss_type, normalization", [("dapo", "global"), ("bnpo", "micro_batch")])
def test_a_token_budget_changes_no_gradient(model_dir, tokenizer, tmp_path, context, loss_type, normalization):
    results, forwards = [], []
    for budget in (None, 150):
        trainer = make_trainer(
            model_dir, tokenizer, tmp_path / str(budget), context=context, opd_weight=1.0, max_steps=2, beta=0.02,
            loss_type=loss_type, opd_normalization=normalization, optim="sgd", learning_rate=1.0,
            max_tokens_per_forward=budget,
        )  # fmt: skip
        forwards.append(count_tokens(trainer))
        trainer.train()
        results.append((parameters(trainer), logged(trainer, "loss"), logged(trainer, "opd/gate")))
        for whole, update in zip(logged(trainer, "step_time"), logged(trainer, "time/update")):
            assert whole > update
    assert len(forwards[1]) > len(forwards[0]) and max(forwards[1]) <= 150 < max(forwards[0])
    (whole, *whole_log), (parts, *parts_log) = results
    assert torch.allclose(whole, parts, atol=2e-6)
    assert sum(whole_log, []) == pytest.approx(sum(parts_log, []), abs=2e-6)


def count_tokens(trainer) -> list[int]:
    """Padded tokens of each forward from here on."""
    tokens = []
    forward = trainer._get_per_token_logps_and_entropies

    def counted(model, input_ids, *args, **kwargs):
        tokens.append(input_ids.numel())
        return forward(model, input_ids, *args, **kwargs)

    trainer._get_per_token_logps_and_entropies = counted
    return tokens


def test_the_term_adds_its_own_gradient(model_dir, tokenizer, tmp_path):
    results = {}
    for weight in (0.0, 1.0):
        trainer = make_trainer(model_dir, tokenizer, tmp_path / str(weight), opd_weight=weight, max_steps=1)
        trainer.train()
        results[weight] = parameters(trainer)
    assert not torch.allclose(results[0.0], results[1.0], atol=1e-4)


# ------------------------------------------------------------------------------------------------------- teacher rows


@pytest.mark.parametrize("context", ["steps", "transcript"])
def test_teacher_rows_carry_the_sampled_ids_and_the_skill(model_dir, tokenizer, tmp_path, context):
    trainer = make_trainer(model_dir, tokenizer, tmp_path, context=context)
    rows = [r for r in trainer._generate_and_score_completions([{"task": i} for i in (0, 0, 1, 1)]) if not r.filler]
    assert rows
    skill = tokenizer("in the drawer", add_special_tokens=False)["input_ids"]
    for row in rows:
        sampled = [i for i, m in zip(row.row.completion_ids, row.row.loss_mask) if m]
        assert len(row.teacher_logps) == len(row.row.completion_ids)
        assert sampled, "every row trains on something"
        assert _contains(row.teacher_prompt_ids, skill)
        assert not _contains(row.prompt_ids, skill)
    if context == "steps":
        replies = [step.completion_ids for t in _played(trainer) for step in t.steps]
        assert [row.row.completion_ids for row in rows[: len(replies)]] == replies[: len(rows)]


def _played(trainer):
    from seed_trl.rollout import rollout

    tasks = [trainer._train_tasks[i] for i in (0, 0, 1, 1)]
    return rollout(trainer.benchmark, tasks, ScriptedPolicy(trainer._tokenizer), trainer.rollout_settings)


def _contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[i : i + len(part)] == part for i in range(len(ids)))


@pytest.mark.parametrize("teacher", ["rollout", "live"])
def test_a_teacher_prompt_that_equals_the_students_gives_no_shift(model_dir, tokenizer, tmp_path, teacher):
    class Blind(ToyBenchmark):
        def prompt(self, view):
            from dataclasses import replace

            return super().prompt(replace(view, skill=None))

    trainer = make_trainer(
        model_dir, tokenizer, tmp_path, Blind(), opd_weight=1.0, max_steps=1, teacher=teacher, opd_beta=5.0
    )
    trainer.train()
    assert logged(trainer, "opd/shift_abs")[0] < 1e-6
    assert logged(trainer, "opd/gate")[0] == pytest.approx(0.5, abs=1e-6)
    assert logged(trainer, "opd/active_share") == [1.0]


def test_rollout_and_live_teachers_agree_on_the_first_step_of_a_batch(model_dir, tokenizer, tmp_path):
    results = []
    for teacher in ("rollout", "live"):
        trainer = make_trainer(model_dir, tokenizer, tmp_path / teacher, teacher=teacher, opd_weight=1.0, max_steps=2)
        trainer.train()
        results.append(parameters(trainer))
    assert torch.allclose(*results, atol=1e-6)


def test_several_optimizer_steps_a_batch_use_old_log_probs(model_dir, tokenizer, tmp_path):
    trainer = make_trainer(
        model_dir, tokenizer, tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        steps_per_generation=4, max_steps=4, opd_weight=0.1,
    )  # fmt: skip
    trainer.train()
    assert len(logged(trainer, "loss")) == 4
    assert len(logged(trainer, "rollout/return")) == 2
    assert all(row.old_logps is not None for chunk in trainer._buffered_inputs for row in chunk)


# -------------------------------------------------------------------------------------------------------- no skills


def test_a_batch_without_skills_trains_as_grpo(model_dir, tokenizer, tmp_path, caplog):
    class Speechless(ToyBenchmark):
        def rule_analyzer(self):
            return lambda trajectory: None

    silent = make_trainer(model_dir, tokenizer, tmp_path / "silent", Speechless(), opd_weight=1.0)
    silent.train()
    plain = make_trainer(model_dir, tokenizer, tmp_path / "plain", algorithm="grpo")
    plain.train()
    assert torch.equal(parameters(silent), parameters(plain))
    assert logged(silent, "opd/loss") == [0.0, 0.0, 0.0]
    assert logged(silent, "skills/parsed") == [0.0, 0.0, 0.0]
    assert "not one of the analyses held a skill" in caplog.text


def test_grpo_neither_analyzes_nor_scores_a_teacher(model_dir, tokenizer, tmp_path):
    trainer = make_trainer(model_dir, tokenizer, tmp_path, algorithm="grpo", max_steps=1)
    assert trainer.analyzer is None
    trainer.train()
    for key in ("time/analysis", "time/teacher", "opd/loss", "skills/parsed"):
        assert logged(trainer, key) == []


def test_lambda_decays_to_zero_and_then_costs_nothing(model_dir, tokenizer, tmp_path):
    trainer = make_trainer(model_dir, tokenizer, tmp_path, opd_weight=0.4, opd_weight_decay_steps=2)
    trainer.train()
    assert logged(trainer, "opd/weight") == pytest.approx([0.4, 0.2])
    assert len(logged(trainer, "time/analysis")) == 2


# ------------------------------------------------------------------------------------------------------------ chain


def test_invalid_actions_cost_their_own_row(model_dir, tokenizer, tmp_path):
    trainer = make_trainer(
        model_dir, tokenizer, tmp_path, ToyBenchmark(invalid_word="the"), algorithm="grpo",
        invalid_action_penalty=5.0, scale_rewards="none",
    )  # fmt: skip
    rows = [r for r in trainer._generate_and_score_completions([{"task": 0}] * 4) if not r.filler]
    by_trajectory = {}
    for row in rows:
        by_trajectory.setdefault(row.row.trajectory, {})[row.row.invalid_actions] = row.advantage
    mixed = [values for values in by_trajectory.values() if len(values) == 2]
    assert mixed, "the script gives trajectories with valid and invalid actions"
    for values in mixed:
        assert values[0] - values[1] == pytest.approx(5.0, abs=1e-5)


def test_an_episode_its_environment_broke_is_masked_and_the_run_goes_on(model_dir, tokenizer, tmp_path, caplog):
    class Fragile(ToyBenchmark):
        def make_env(self):
            env = super().make_env()
            step = env.step

            def fails_at_two(action):
                if env.number == 2 and env.count == 1:
                    raise RuntimeError("the server went away")
                return step(action)

            env.step = fails_at_two
            return env

    trainer = make_trainer(model_dir, tokenizer, tmp_path, Fragile(tasks=2), max_steps=1)
    trainer.train()
    assert 0 < logged(trainer, "rollout/masked")[0] <= 0.5
    assert logged(trainer, "rollout/stop/env_error")[0] == logged(trainer, "rollout/masked")[0]
    assert "the server went away" in caplog.text


def test_the_policy_rolls_out_analyzes_and_evaluates_itself(model_dir, tokenizer, tmp_path):
    trainer = make_trainer(
        model_dir, tokenizer, tmp_path, scripted=False, skill_source="policy", max_steps=2, max_eval_tasks=4,
        eval_strategy="steps", eval_steps=1, context="transcript",
    )  # fmt: skip
    trainer.train()
    assert len(logged(trainer, "eval_success")) == 2
    assert logged(trainer, "eval_episodes") == [4, 4]
    assert all(0 <= value <= 1 for value in logged(trainer, "skills/parsed"))
    for key in ("time/rollout", "time/environment", "time/analysis", "time/update", "num_tokens", "rollout/success"):
        assert len(logged(trainer, key)) == 2, key


def test_sampled_log_probs_are_those_of_a_full_forward(model_dir, tokenizer, tmp_path):
    for context in ("steps", "transcript"):
        trainer = make_trainer(
            model_dir,
            tokenizer,
            tmp_path / context,
            scripted=False,
            context=context,
            algorithm="grpo",
            temperature=0.7,
        )
        rows = trainer._generate_and_score_completions([{"task": i} for i in (0, 0, 1, 1)])
        rows = [row for row in rows if not row.filler]
        with torch.no_grad():
            scored = trainer._logps_of(trainer.model, rows)
        for row, logps in zip(rows, scored):
            mask = torch.tensor(row.row.loss_mask).bool()
            assert torch.allclose(logps[mask], torch.tensor(row.row.sampler_logps)[mask], atol=1e-5)


def test_evaluating_does_not_change_training(model_dir, tokenizer, tmp_path):
    results = []
    for evaluate in ("no", "steps"):
        trainer = make_trainer(
            model_dir, tokenizer, tmp_path / evaluate, scripted=False, algorithm="grpo", eval_strategy=evaluate,
            eval_steps=1, max_eval_tasks=2,
        )  # fmt: skip
        trainer.train()
        results.append(parameters(trainer))
    assert torch.equal(*results)


def test_an_adapter_is_trained_against_the_model_without_it(model_dir, tokenizer, tmp_path):
    from peft import LoraConfig

    trainer = SEEDTrainer(
        model=model_dir,
        args=settings(tmp_path, opd_weight=1.0, beta=0.02, max_steps=2, context="transcript"),
        benchmark=ToyBenchmark(),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.policy = ScriptedPolicy(tokenizer)
    trainer.train()
    changed = {name for name, value in trainer.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and all("lora" in name for name in changed)
    kl = logged(trainer, "kl")
    assert kl[0] == pytest.approx(0.0, abs=1e-6) and kl[1] > 1e-5


def test_a_tiny_context_lowers_the_analyzers_lengths_and_says_so(model_dir, tokenizer, tmp_path, caplog):
    trainer = make_trainer(
        model_dir, tokenizer, tmp_path, skill_source="policy", analyzer_max_tokens=4096, analyzer_max_context=16384
    )
    assert (trainer.args.analyzer_max_tokens, trainer.args.analyzer_max_context) == (128, 512)
    assert "analyzer_max_context is lowered from 16384 to the model's 512" in caplog.text


# ----------------------------------------------------------------------------------------------------------- analyzer


def test_a_stale_analyzer_keeps_its_weights_for_k_batches(model_dir, tokenizer, tmp_path):
    trainer = make_trainer(
        model_dir, tokenizer, tmp_path, skill_source="policy", analyzer_sync_steps=2, max_steps=3, opd_weight=1.0
    )
    seen, live = [], []

    class Spy:
        counts = None

        def analyze(self, trajectories):
            seen.append(parameters(trainer).clone())
            return trainer_rule(trajectories)

    rule = ToyBenchmark().rule_analyzer()

    def trainer_rule(trajectories):
        return [rule(trajectory) for trajectory in trajectories]

    trainer.analyzer = Spy()
    original = trainer._analyze

    def note(trajectories):
        live.append(parameters(trainer).clone())
        skills = original(trajectories)
        assert torch.equal(live[-1], parameters(trainer)), "the live weights are back after the analysis"
        return skills

    trainer._analyze = note
    trainer.train()
    assert torch.equal(seen[0], live[0])
    assert torch.equal(seen[1], live[0]) and not torch.equal(live[1], live[0])
    assert torch.equal(seen[2], live[2])


def test_a_stale_teacher_scores_with_weights_of_every_nth_batch(model_dir, tokenizer, tmp_path):
    trainer = make_trainer(
        model_dir, tokenizer, tmp_path, skill_source="rule", teacher_sync_steps=2, max_steps=3, opd_weight=1.0
    )
    scored, live = [], []
    original, score = trainer._logps_of, trainer._score

    def note_weights(model, rows, teacher_prompts=False):
        if teacher_prompts:
            scored.append(parameters(trainer).clone())
        return original(model, rows, teacher_prompts)

    def note_live(rows):
        live.append(parameters(trainer).clone())
        score(rows)
        assert torch.equal(live[-1], parameters(trainer)), "the live weights are back after the scoring"

    trainer._logps_of, trainer._score = note_weights, note_live
    trainer.train()
    assert torch.equal(scored[0], live[0])
    assert torch.equal(scored[1], live[0]) and not torch.equal(live[1], live[0])
    assert torch.equal(scored[2], live[2])


def test_fixed_skills_come_from_a_file(model_dir, tokenizer, tmp_path):
    path = tmp_path / "skills.json"
    path.write_text('{"odd": "look in the drawer before the desk"}')
    trainer = make_trainer(
        model_dir, tokenizer, tmp_path / "run", skill_source="file", skill_file=str(path), max_steps=2
    )
    assert isinstance(trainer.analyzer, FileAnalyzer)
    trainer.train()
    assert 0 < max(logged(trainer, "opd/active_share"))
    assert 0 < sum(logged(trainer, "skills/parsed")) < 2


# ------------------------------------------------------------------------------------------------------------- resume


@pytest.mark.parametrize(
    "save_at, term",
    [
        (2, {}),
        (3, {}),
        (
            3,
            {
                "opd_variant": "centered",
                "opd_scope": "step",
                "skill_assignment": "shuffled",
                "opd_weight_decay_steps": 6,
            },
        ),
    ],
)
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(model_dir, tokenizer, tmp_path, save_at, term):
    """Two optimizer steps a generation batch: step 3 lies inside a cycle. Epoch 2 begins at step 5."""
    options = {
        **term,
        "scripted": False, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4,
        "opd_weight": 0.5, "save_strategy": "steps", "save_steps": save_at, "bench": ToyBenchmark(tasks=4),
    }  # fmt: skip
    whole = make_trainer(model_dir, tokenizer, tmp_path / "whole", max_steps=7, **options)
    whole.train()
    resumed = make_trainer(model_dir, tokenizer, tmp_path / "resumed", max_steps=7, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{save_at}"))
    assert logged(resumed, "loss") == logged(whole, "loss")
    assert logged(resumed, "opd/loss") == logged(whole, "opd/loss")
    assert torch.equal(parameters(resumed), parameters(whole))


def test_only_a_whole_checkpoint_is_found(model_dir, tokenizer, tmp_path):
    from seed_trl.seed_trainer import COMPLETE_FILE, last_complete_checkpoint

    trainer = make_trainer(model_dir, tokenizer, tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-2"
    (tmp_path / "checkpoint-2" / COMPLETE_FILE).unlink()
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-1"


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_type": "grpo"}, "divides by rows"),
        ({"num_generations": 3}, "must be divisible by num_generations"),
        ({"steps_per_generation": 1}, "less than gradient_accumulation_steps"),
        ({"steps_per_generation": 3}, "must be a multiple"),
        ({"algorithm": "ppo"}, "algorithm must be one of seed, grpo"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions=True has no meaning for episodes"),
        ({"scale_rewards": "batch"}, "scale_rewards must be"),
        ({"skill_source": "file"}, "set skill_file"),
        ({"opd_variant": "k4"}, "opd_variant must be one of"),
        ({"teacher_sync_steps": 0}, "teacher_sync_steps must be at least 1"),
        ({"teacher_sync_steps": 5, "teacher": "live"}, "needs teacher: rollout"),
        ({"skill_source": "mine"}, "file, endpoint, sibling, shuffled, none; got 'mine'"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        settings(tmp_path, **changes)


def test_too_few_tasks_are_refused(model_dir, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="1 training tasks do not fill one generation batch of 2 groups"):
        make_trainer(model_dir, tokenizer, tmp_path, ToyBenchmark(tasks=1))


def test_a_half_written_model_folder_is_named(tokenizer, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no weights"):
        make_trainer(str(tmp_path), tokenizer, tmp_path / "run")
