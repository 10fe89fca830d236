"""`SEEDTrainer`: the one place that knows the whole chain.

    tasks -> episodes -> skills -> rows -> advantages, teacher log-probs -> GRPO's loss + lambda * L_opd

Everything else is TRL's `GRPOTrainer`. Each override names the TRL method and the version it was read in.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Trainer
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import RepeatSampler, use_adapter

from ._files import write_atomic
from ._versions import check_versions
from .advantages import group_statistics, normalize_returns, trajectory_moments
from .analysis import Analyzer, AnalyzerSettings, make_analyzer
from .batching import (
    TrainRow,
    collate,
    fill_up,
    filler_row,
    micro_batches,
    rows_needed,
    sampler_logps,
    split_by_tokens,
)
from .chat_client import EndpointSettings
from .context import ChatFormat
from .envs import Benchmark, load_benchmark
from .evaluation import Episode, Score, select_panel
from .opd import OPDStats, credited_advantages, opd_loss, opd_weight
from .opd_units import opd_units
from .policy import Sampling, TrainerPolicy, check_checkpoint
from .rollout import RolloutSettings, RolloutTimes, build_rows, check_images, rollout
from .seed_config import SEEDConfig
from .skill_sources import shuffled_skills, sibling_skills
from .trajectory_io import image_from_png, png_base64
from .types import Row, Skill, StopReason, Task, Trajectory
from .vision import VisionInputs, load_processor
from .vllm_engine import EngineSettings, VLLMServerError, WeightSyncError, generating_with

check_versions()

logger = logging.getLogger(__name__)

STATE_FILE = "seed_state_{rank}.pt"
COMPLETE_FILE = "seed_complete.json"


def episode_return(prompts, **kwargs) -> list[float]:
    """Stands where `GRPOTrainer.__init__` demands a reward function; returns come from the benchmark."""
    raise RuntimeError("SEEDTrainer takes returns from the benchmark; this function is never called")


class EpochRepeatSampler(RepeatSampler):
    """TRL's `RepeatSampler` (read in 1.16) in the same order, but able to start in any epoch: a resumed run goes on
    with the order the uninterrupted run would have had."""

    def set_epoch(self, epoch: int) -> None:
        if not self.shuffle:
            return
        self.generator.manual_seed(self.seed if self.seed is not None else 0)
        for _ in range(epoch):
            torch.randperm(self.num_samples, generator=self.generator)


class SEEDTrainer(GRPOTrainer):
    """
    Trainer for SEED: self-evolving on-policy distillation for agentic reinforcement learning (arXiv 2607.14777).

    Args:
        model: a Hub id, a local folder, or a `PreTrainedModel` / `PeftModel`.
        args: a `SEEDConfig`.
        benchmark: a `Benchmark`, or the name of one.
        train_dataset: optional `Dataset` with a `task_id` column; default all tasks of `args.train_split`.
        eval_dataset: optional `Dataset` with a `task_id` column: the panel of `evaluate`.
        processing_class: the tokenizer, or the processor of a vision-language model; default the model's.
        peft_config: a peft config, as for `GRPOTrainer`.
        analyzer: who writes skills; default by `args.skill_source`.
        callbacks, optimizers, quantization_config: as for `GRPOTrainer`.

    Raises:
        ValueError: fewer tasks than one generation batch needs, a half-written model folder, an unknown split.
    """

    _name = "SEED"
    _tag_names = ["trl", "seed", "seed_trl"]
    _paper = {
        "title": "SEED: Self-Evolving On-Policy Distillation for Agentic Reinforcement Learning",
        "id": "2607.14777",
    }

    def __init__(
        self,
        model,
        args: SEEDConfig | None = None,
        benchmark: Benchmark | str = "alfworld",
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list | None = None,
        optimizers: tuple = (None, None),
        quantization_config=None,
        peft_config=None,
        analyzer: Analyzer | None = None,
    ):
        args = args if args is not None else SEEDConfig("seed-output")
        if isinstance(model, str):
            check_checkpoint(model)
            if processing_class is None:
                processing_class = _vision_processor(model, args)
        self.benchmark = load_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
        _fill_in_published_settings(args, self.benchmark)
        self._train_tasks = self._select_tasks(train_dataset, args.train_split, args.max_train_tasks)
        eval_split = args.eval_split or self.benchmark.splits[min(1, len(self.benchmark.splits) - 1)]
        # the panel is only loaded when something asks for it: official splits are large
        self._eval_choice = (eval_dataset, eval_split, args.max_eval_tasks)
        self._panel: list[Task] | None = None
        groups = args.generation_batch_size // args.num_generations
        if len(self._train_tasks) < groups:
            raise ValueError(
                f"{len(self._train_tasks)} training tasks do not fill one generation batch of {groups} groups "
                f"(generation_batch_size {args.generation_batch_size} / num_generations {args.num_generations}): "
                "nothing would be trained; use more tasks or a smaller batch"
            )

        with self._checked_vllm(args) if args.use_vllm else nullcontext():
            super().__init__(
                model=model,
                reward_funcs=[episode_return],
                args=args,
                train_dataset=Dataset.from_dict({"task": list(range(len(self._train_tasks)))}),
                eval_dataset=Dataset.from_dict({"task": [0]}),
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
            )

        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if self.use_vllm:
            served = self.vllm_generation.context_length()
            if args.max_context_length is None and served is not None:
                # a scored sequence is a prompt to the server, which wants to add one token
                args.max_context_length = min(served, positions or served) - (args.teacher_backend == "vllm")
        _fit_to_model(args, positions)
        if self.use_vllm:
            self.vllm_generation.require_context(longest_request(args))
        self.policy = TrainerPolicy(self, args.rollout_batch_size)
        self.chat = ChatFormat(self.processing_class, args.chat_template_kwargs)
        self.rollout_settings = RolloutSettings(
            context=args.context,
            max_steps=args.max_env_steps,
            history_length=args.history_length,
            max_prompt_length=args.max_prompt_length,
            max_response_length=args.max_completion_length,
            max_context_length=args.max_context_length,
            sampling=Sampling(
                temperature=args.temperature,
                top_p=args.top_p,
                top_k=args.top_k,
                min_p=args.min_p,
                repetition_penalty=args.repetition_penalty,
            ),
            env_timeout=args.env_timeout,
            env_workers=args.env_workers,
            chat_template_kwargs=args.chat_template_kwargs,
        )
        check_images(self.benchmark, self.policy, self.rollout_settings)
        self.analyzer = analyzer if analyzer is not None else self._make_analyzer()
        self._analyzer_copy = WeightsCopy(self, args.analyzer_sync_steps) if self._needs_analyzer_copy() else None
        self._teacher_copy = WeightsCopy(self, args.teacher_sync_steps) if self._needs_teacher_copy() else None

        self._filler_vision: VisionInputs | None = None  # of rows that stand in where all others have images
        self._without_skills = False  # the last batch had none
        self._part: list[TrainRow] | None = None  # of a micro-batch that is done in parts
        self._chunk_tokens: tuple[int, int] | None = None
        self._captured_logps: Tensor | None = None
        self._on_student_logps: Callable[[Tensor], None] | None = None
        self._capture_armed = False
        self._opd_window: Tensor | None = None
        self._prepare_seconds = 0.0
        self._update_seconds = 0.0

    # ------------------------------------------------------------------------------------------------------- set-up

    def _checked_vllm(self, args: SEEDConfig) -> AbstractContextManager:
        """Inside, `GRPOTrainer.__init__` builds our engine in place of TRL's."""
        sync = args.vllm_weight_sync
        if sync == "auto":
            sync = "nccl" if args.device.type == "cuda" else "filesystem"
        folder = args.vllm_sync_folder
        return generating_with(
            EngineSettings(
                weight_sync=sync,
                sync_folder=Path(folder or Path(args.output_dir) / "vllm_weights"),
                own_folder=folder is None,
                check_steps=args.vllm_sync_check_steps,
                tolerance=args.vllm_sync_tolerance,
                request_timeout=args.vllm_request_timeout,
                temperature=args.temperature,
                score=self._score_probe,
                exact=not (args.bf16 or args.fp16),
            )
        )

    def _select_tasks(self, dataset: Dataset | None, split: str, limit: int | None) -> list[Task]:
        tasks = self.benchmark.tasks(split)
        if dataset is None:
            return select_panel(tasks, limit)
        if "task_id" not in dataset.column_names:
            raise ValueError(f"the dataset has no task_id column; it has {', '.join(dataset.column_names)}")
        by_id = {task.id: task for name in self.benchmark.splits for task in self.benchmark.tasks(name)}
        if unknown := [name for name in dataset["task_id"] if name not in by_id]:
            raise ValueError(f"task {unknown[0]!r} of the dataset is not in benchmark {self.benchmark.name!r}")
        return [by_id[name] for name in dataset["task_id"]]

    def _make_analyzer(self) -> Analyzer | None:
        if self.args.algorithm == "grpo" or self.args.skill_assignment == "none":
            return None
        return make_analyzer(
            self.args.skill_source,
            benchmark=self.benchmark,
            policy=self.policy,
            chat=self.chat,
            path=self.args.skill_file,
            settings=AnalyzerSettings(
                max_new_tokens=self.args.analyzer_max_tokens,
                max_context=self.args.analyzer_max_context,
                style=self.args.analyzer_prompt_style,
                success_threshold=self.benchmark.settings.success_threshold,
            ),
            endpoint=EndpointSettings(
                base_url=self.args.analyzer_base_url,
                model=self.args.analyzer_model,
                api_key_env=self.args.analyzer_api_key_env,
                max_tokens=self.args.analyzer_max_tokens,
            ),
        )

    def _needs_analyzer_copy(self) -> bool:
        if self.args.analyzer_sync_steps == 1 or self.args.algorithm == "grpo" or self.args.skill_source != "policy":
            return False
        if self.args.skill_assignment == "none":
            return False
        if self.use_vllm or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ValueError(
                f"analyzer_sync_steps={self.args.analyzer_sync_steps} keeps a second set of weights, which works with "
                "Transformers rollouts without DeepSpeed or FSDP; set it to 1"
            )
        return True

    def _needs_teacher_copy(self) -> bool:
        if self.args.teacher_sync_steps == 1 or self.args.algorithm == "grpo":
            return False
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ValueError(
                f"teacher_sync_steps={self.args.teacher_sync_steps} keeps a second set of weights, which works without "
                "DeepSpeed or FSDP; set it to 1"
            )
        return True

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        """TRL 1.16's sampler with a `set_epoch`: without it a run resumed in epoch 2 replays epoch 1's order."""
        return EpochRepeatSampler(
            data_source=dataset if dataset is not None else self.train_dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size // self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=self.shuffle_dataset,
            seed=self.args.seed,
        )

    def _set_signature_columns_if_needed(self) -> None:
        """TRL 1.16 names "prompt" and images; rows here carry a task index."""
        if self._signature_columns is None:
            self._signature_columns = ["task"]

    # ------------------------------------------------------------------------------------------- episodes to rows

    @property
    def opd_weight(self) -> float:
        """Lambda of the current optimizer step; 0 under `algorithm: grpo`."""
        if self.args.algorithm == "grpo":
            return 0.0
        return opd_weight(self.args.opd_weight, self.state.global_step, self.args.opd_weight_decay_steps)

    @property
    def distills(self) -> bool:
        """Whether this generation batch needs skills and a teacher."""
        return self.opd_weight > 0

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Tensor]:
        """TRL 1.16 pads, shuffles and splits the generation batch as one tensor dict; here it stays a list of rows.

        Rows are sorted by length within an optimizer step and padded per micro-batch, and the denominators are counted
        per optimizer step over all processes.
        """
        started = time.perf_counter()
        chunk = self._part if self._part is not None else self._chunk(generation_batch)
        inputs = self._collate_for_loss(chunk)
        self._prepare_seconds += time.perf_counter() - started
        return inputs

    def _chunk(self, generation_batch: Any) -> list[TrainRow]:
        """The rows of the current micro-batch; plays a new generation batch when the last one is used up."""
        generate_every = self.args.steps_per_generation * self.num_iterations
        if self._step % generate_every == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._split_rows(self._generate_and_score_completions(generation_batch))
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _generate_and_score_completions(self, inputs: Sequence[Mapping[str, int]]) -> list[TrainRow]:
        """TRL 1.16 generates one completion a prompt and scores it; here episodes are played, analyzed, cut into rows.

        Returns the same number of rows on every process, a multiple of `steps_per_generation`.
        """
        tasks = [self._train_tasks[example["task"]] for example in inputs]
        trajectories = self._roll_out(tasks)
        skills = self._analyze(trajectories) if self._needs_skills else [None] * len(trajectories)
        for trajectory, skill in zip(trajectories, skills, strict=True):
            trajectory.skill = skill
        shown = self._assign_skills(trajectories, skills)
        rows, counts = build_rows(trajectories, self.benchmark, self.chat, self.rollout_settings, shown)
        if self.distills:
            self._record(
                {
                    "opd/teacher_shortened": (counts.teacher_shortened, counts.teacher_prompts),
                    "opd/teacher_lost": (counts.teacher_lost, counts.teacher_prompts),
                }
            )
        group_ids = [example["task"] for example in inputs]
        advantages = self._advantages(trajectories, rows, group_ids)
        train_rows = [
            TrainRow(row, advantage, trajectories[row.trajectory].success)
            for row, advantage in zip(rows, advantages, strict=True)
        ]
        if self.distills:
            self._choose_distilled(train_rows)
        self._log_episodes(trajectories, train_rows)
        largest = self._over_processes(len(train_rows), "max")
        if self.chat.vision is not None:
            shown = self._over_processes(sum(row.image is not None for row in rows), "max")
            self._filler_vision = self.chat.vision if shown else None
        train_rows = fill_up(
            train_rows,
            rows_needed(largest, self.args.steps_per_generation),
            self._tokenizer.pad_token_id,
            self._filler_vision,
        )
        self._score(train_rows)
        return train_rows

    @property
    def _needs_skills(self) -> bool:
        return self.distills and self.args.skill_assignment != "none"

    def _assign_skills(self, trajectories: list[Trajectory], skills: list[Skill | None]) -> list[Skill | None]:
        """The skill that each trajectory's teacher is shown, which need not be its own."""
        assignment = self.args.skill_assignment
        if not self._needs_skills or assignment == "own":
            shown = skills
        elif assignment == "sibling":
            shown = sibling_skills(trajectories, skills)
        else:
            key = f"{self.args.seed}/{self.state.global_step}/{self.accelerator.process_index}"
            shown = shuffled_skills(trajectories, skills, key)
        if self._needs_skills and assignment != "own":
            sound = sum(not trajectory.masked for trajectory in trajectories)
            self._record({"skills/assigned": (sum(skill is not None for skill in shown), sound)})
        if self.args.opd_rows == "success":
            shown = [skill if t.success else None for skill, t in zip(shown, trajectories, strict=True)]
        return shown

    def _choose_distilled(self, rows: list[TrainRow]) -> None:
        """Which of the rows' tokens are distilled, and which of them share a shift."""
        for row in rows:
            if self.args.skill_assignment == "none" and (row.success or self.args.opd_rows == "all"):
                row.row.teacher_prompt_ids = row.row.prompt_ids
            if row.row.teacher_prompt_ids is not None:
                row.opd_units = opd_units(
                    row.row.completion_ids,
                    row.row.loss_mask,
                    self.args.opd_scope,
                    self.args.opd_tokens,
                    lambda token: self._tokenizer.decode([token]),
                )

    def _roll_out(self, tasks: list[Task]) -> list[Trajectory]:
        times = RolloutTimes()
        started = time.perf_counter()
        trajectories = rollout(
            self.benchmark,
            tasks,
            self.policy,
            self.rollout_settings,
            progress="rollout" if self.args.show_progress and self.accelerator.is_main_process else None,
            times=times,
        )
        self._record_seconds(rollout=time.perf_counter() - started, environment=times.environment)
        return trajectories

    def _analyze(self, trajectories: list[Trajectory]) -> list[Skill | None]:
        """One skill a finished episode, or None. Masked episodes get none."""
        started = time.perf_counter()
        sound = [index for index, trajectory in enumerate(trajectories) if not trajectory.masked]
        with self._analyzer_copy.in_place() if self._analyzer_copy is not None else nullcontext():
            found = self.analyzer.analyze([trajectories[index] for index in sound])
        skills: list[Skill | None] = [None] * len(trajectories)
        for index, skill in zip(sound, found, strict=True):
            skills[index] = skill
        parsed = [skill for skill in skills if skill is not None]
        words = sum(len(skill.text.split()) for skill in parsed)
        totals = self._record({"skills/parsed": (len(parsed), len(sound)), "skills/length": (words, len(parsed))})
        self._record_seconds(analysis=time.perf_counter() - started)
        nothing, before = totals["skills/parsed"] == 0.0, self._without_skills
        self._without_skills = nothing
        if nothing and not before:  # a run without any would say so at every update
            logger.warning(
                "step %d: not one of the analyses held a skill; the distillation term is 0 for this batch. Run the "
                "skill SFT first (seed-trl sft), or raise analyzer_max_tokens if answers are cut off",
                self.state.global_step,
            )
        return skills

    def _advantages(self, trajectories: list[Trajectory], rows, group_ids: Sequence[int]) -> list[float]:
        """Group-normalized returns, one a row; statistics over all processes (algorithm.md section 3)."""
        returns = torch.tensor([trajectories[row.trajectory].episode_return for row in rows], dtype=torch.float64)
        penalties = torch.tensor([row.invalid_actions for row in rows], dtype=torch.float64)
        penalties = penalties * self.args.invalid_action_penalty
        of_trajectory = torch.tensor([row.trajectory for row in rows], dtype=torch.long)
        moments = trajectory_moments(
            returns, of_trajectory, len(trajectories), self.args.advantage_statistics, penalties
        )
        everywhere = self._gather_equal(torch.cat([torch.tensor(group_ids).double().unsqueeze(1), moments], dim=1))
        statistics = group_statistics(everywhere[:, 1:], everywhere[:, 0].long())
        offset = self.accelerator.process_index * len(trajectories)
        scale = self.args.scale_rewards == "group"
        advantages = normalize_returns(
            returns, of_trajectory + offset, statistics, scale, self.args.advantage_eps, penalties
        )
        flat = (everywhere[:, 3] > 0) & torch.isclose(statistics.std, torch.zeros_like(statistics.std))
        self._metrics["train"]["frac_reward_zero_std"].append(flat.double().mean().item())
        return advantages.tolist()

    def _split_rows(self, rows: list[TrainRow]) -> list[list[TrainRow]]:
        accumulation = self.args.gradient_accumulation_steps
        optimizer_steps = self.args.steps_per_generation // accumulation
        chunks = micro_batches(rows, optimizer_steps, accumulation, torch.randperm(len(rows)).tolist())
        self._step_tokens = []
        for start in range(0, len(chunks), accumulation):
            step_rows = [row for chunk in chunks[start : start + accumulation] for row in chunk]
            counts = [sum(row.loss_tokens for row in step_rows), sum(row.opd_tokens for row in step_rows)]
            totals = self.accelerator.reduce(
                torch.tensor(counts, dtype=torch.float32, device=self.accelerator.device), reduction="sum"
            )
            self._step_tokens.append(totals.tolist())
        return chunks

    def _collate_for_loss(self, chunk: list[TrainRow]) -> dict[str, Tensor]:
        device = self.accelerator.device
        inputs = collate(chunk, self._tokenizer.pad_token_id, device, vision=self.chat.vision)
        if "old_logps" in inputs:
            inputs["old_per_token_logps"] = inputs.pop("old_logps")
        if "ref_logps" in inputs:
            inputs["ref_per_token_logps"] = inputs.pop("ref_logps")
        width = inputs["completion_ids"].size(1)
        if self.use_vllm:
            inputs["sampling_per_token_logps"] = sampler_logps(chunk, width).to(device)
            if self.vllm_importance_sampling_correction:
                inputs["importance_sampling_ratio"] = importance_sampling_ratio(
                    inputs["old_per_token_logps"],
                    inputs["sampling_per_token_logps"],
                    inputs["tool_mask"],
                    self.vllm_importance_sampling_mode,
                    self.vllm_importance_sampling_clip_min,
                    self.vllm_importance_sampling_clip_max,
                )
        if self.distills and self.args.teacher == "live":
            teacher = collate(chunk, self._tokenizer.pad_token_id, device, True, self.chat.vision)
            inputs["teacher_prompt_ids"] = teacher["prompt_ids"]
            inputs["teacher_prompt_mask"] = teacher["prompt_mask"]
            if "mm_token_type_ids" in teacher:
                inputs["teacher_prompt_types"] = teacher["mm_token_type_ids"]
        accumulation = self.args.gradient_accumulation_steps
        loss_tokens, opd_tokens = self._step_tokens[self._step % self.args.steps_per_generation // accumulation]
        # TRL takes the count of a whole generation batch and divides by its optimizer steps; ours is per step already
        per_batch = loss_tokens * self.args.steps_per_generation / accumulation
        inputs["num_items_in_batch"] = torch.tensor(per_batch, device=device)
        inputs["opd_items_in_step"] = torch.tensor(opd_tokens, device=device)
        return inputs

    # ------------------------------------------------------------------------------------------------------ scoring

    def _score(self, rows: list[TrainRow]) -> None:
        """Fill in the rows' old, reference and teacher log-probs, all under the weights that sampled."""
        generate_every = self.args.steps_per_generation * self.num_iterations
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            # one optimizer step a batch: the old policy is the current one, and TRL takes its log-probs, detached
            if self.args.gradient_accumulation_steps % generate_every or (
                self.use_vllm and self.vllm_importance_sampling_correction
            ):
                for row, logps in zip(rows, self._logps_of(self.model, rows), strict=True):
                    row.old_logps = logps
            if self.beta != 0.0:
                started = time.perf_counter()
                for row, logps in zip(rows, self._reference_logps(rows), strict=True):
                    row.ref_logps = logps
                self._record_seconds(reference=time.perf_counter() - started)
            if self.distills and self.args.teacher == "rollout":
                started = time.perf_counter()
                self._score_teacher(rows)
                self._record_seconds(teacher=time.perf_counter() - started)

    def _score_probe(self, prompts: list[list[int]], completions: list[list[int]]) -> list[list[float]]:
        """Log-probs of `completions` under the weights in training, the same rows on every process (a collective)."""
        rows = [
            TrainRow(Row(prompt, completion, [1] * len(completion), [0.0] * len(completion), trajectory=0))
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
                return [logps.tolist() for logps in self._logps_of(self.model, rows)]
        finally:
            self.model.train(training)

    def _reference_logps(self, rows: list[TrainRow]) -> list[Tensor]:
        """As TRL 1.16: a frozen copy, or the policy without its adapter."""
        if self.ref_model is not None:
            return self._logps_of(self.ref_model, rows)
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            return self._logps_of(self.model, rows)

    def _score_teacher(self, rows: list[TrainRow]) -> None:
        skilled = [row for row in rows if row.opd_tokens]
        if self.args.teacher_backend == "vllm":
            if any(row.row.image is not None for row in skilled):
                raise ValueError("a vLLM server cannot score prompts with images; set teacher_backend: local")
            prompts = [row.teacher_prompt_ids for row in skilled]
            scores = self.vllm_generation.score_tokens(prompts, [row.row.completion_ids for row in skilled])
            for row, values in zip(skilled, scores, strict=True):
                row.teacher_logps = torch.tensor(values, dtype=torch.float32)
            return
        with self._teacher_copy.in_place() if self._teacher_copy is not None else nullcontext():
            scores = self._logps_of(self.model, skilled, teacher_prompts=True)
        for row, logps in zip(skilled, scores, strict=True):
            row.teacher_logps = logps

    def _logps_of(self, model, rows: list[TrainRow], teacher_prompts: bool = False) -> list[Tensor]:
        """Log-probs of each row's completion under `model`, 1-D on the CPU; batched by length."""
        lengths = [
            (len(row.teacher_prompt_ids if teacher_prompts else row.prompt_ids), len(row.row.completion_ids))
            for row in rows
        ]
        blocks = split_by_tokens(lengths, self.args.max_tokens_per_forward, self._micro_batch_rows(len(rows)))
        # the same number of forwards on every process, or ZeRO-3 hangs
        blocks += [[]] * (self._over_processes(len(blocks), "max") - len(blocks))
        pad_token_id = self._tokenizer.pad_token_id
        result: list[Tensor | None] = [None] * len(rows)
        for block in blocks:
            block_rows = [rows[i] for i in block] or [filler_row(pad_token_id, self._filler_vision)]
            batch = collate(block_rows, pad_token_id, self.accelerator.device, teacher_prompts, self.chat.vision)
            logps = self._completion_logps(model, batch).float().cpu()
            for position, i in enumerate(block):
                result[i] = logps[position, : len(rows[i].row.completion_ids)].clone()
        return result

    def _completion_logps(self, model, batch: Mapping[str, Tensor], prompt: str = "prompt") -> Tensor:
        images = {name: batch[name] for name in ("pixel_values", "image_grid_thw", "num_images") if name in batch}
        if images:
            images["mm_token_type_ids"] = batch.get(f"{prompt}_types", batch["mm_token_type_ids"])
        logps, _, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch[f"{prompt}_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch[f"{prompt}_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].size(1),
            **images,
        )
        return logps

    def _micro_batch_rows(self, count: int) -> int:
        """Rows of a scoring forward: as many as a training micro-batch has, so that both pad alike."""
        return max(1, math.ceil(count / self.args.steps_per_generation))

    # --------------------------------------------------------------------------------------------------------- loss

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        """TRL 1.16's forward. Inside `_compute_loss` its result is kept: the term needs no second student forward."""
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._capture_armed:
            if self._captured_logps is not None:
                raise RuntimeError("GRPOTrainer._compute_loss called the model twice; this TRL is not supported")
            self._captured_logps = result[0]
            if self._on_student_logps is not None:
                self._on_student_logps(result[0])
        return result

    def _compute_loss(self, model, inputs: dict[str, Tensor]) -> Tensor:
        """TRL 1.16's loss plus lambda * L_opd on the log-probs it computed."""
        weight = self.opd_weight
        teacher_logps = inputs.get("teacher_logps")
        if weight > 0 and "teacher_prompt_ids" in inputs:
            with torch.no_grad():
                teacher_logps = self._completion_logps(model, inputs, prompt="teacher_prompt")
        if weight > 0 and self.args.opd_variant == "credit" and teacher_logps is not None:
            inputs = dict(inputs)
            # TRL reads the advantages after its forward pass: the one that is shared with the term
            self._on_student_logps = lambda logps: self._credit(inputs, logps, teacher_logps, weight)
        self._capture_armed, self._captured_logps = True, None
        try:
            loss = super()._compute_loss(model, inputs)
            student_logps, self._captured_logps = self._captured_logps, None
        finally:
            self._capture_armed, self._captured_logps = False, None
            self._on_student_logps = None
        self._note_sampler(student_logps, inputs)
        if self._chunk_tokens is not None and self.loss_type == "bnpo":
            # a mean over the part's tokens counts by the part's share of the micro-batch
            part_tokens = (inputs["completion_mask"] * inputs["tool_mask"]).sum()
            loss = loss * part_tokens / max(1, self._chunk_tokens[0])
        if weight > 0:
            loss = loss + weight * self._opd_term(student_logps, teacher_logps, inputs)
        return loss

    def _credit(self, inputs: dict[str, Tensor], student_logps: Tensor, teacher_logps: Tensor, weight: float) -> None:
        """Advantages `(rows, tokens)` in the place of `(rows,)`."""
        inputs["advantages"] = credited_advantages(
            inputs["advantages"],
            student_logps,
            teacher_logps,
            inputs["completion_mask"] * inputs["tool_mask"] * inputs["skill_mask"].unsqueeze(1),
            weight,
            units=inputs.get("opd_units"),
            positive_only=self.args.opd_tokens == "positive",
        )

    def _note_sampler(self, student_logps: Tensor, inputs: Mapping[str, Tensor]) -> None:
        """How far vLLM's log-probs were from the trainer's, under TRL 1.16's names; while both have the same weights."""
        cycle = self.args.steps_per_generation * self.num_iterations
        if "sampling_per_token_logps" not in inputs or self._step % cycle >= self.args.gradient_accumulation_steps:
            return
        with torch.no_grad():
            mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
            gaps = (inputs["sampling_per_token_logps"] - student_logps).abs()[mask]
            gaps = torch.nan_to_num(gaps, nan=0.0)
            totals = torch.stack([gaps.sum(), torch.tensor(float(gaps.numel()), device=gaps.device)])
            largest = gaps.max() if gaps.numel() else gaps.new_zeros(())
        totals = self.accelerator.reduce(totals, reduction="sum").tolist()
        largest = self.accelerator.gather(largest).max().item()
        metrics = self._metrics["train"]
        metrics["sampling/sampling_logp_difference/mean"].append(totals[0] / totals[1] if totals[1] else 0.0)
        metrics["sampling/sampling_logp_difference/max"].append(largest)

    def _opd_term(self, student_logps: Tensor, teacher_logps: Tensor | None, inputs: Mapping[str, Tensor]) -> Tensor:
        response = inputs["completion_mask"] * inputs["tool_mask"]
        mask = response * inputs["skill_mask"].unsqueeze(1)
        if "opd_units" in inputs:
            mask = mask * (inputs["opd_units"] > 0)
        if teacher_logps is None:  # no row of this micro-batch has a skill
            teacher_logps = student_logps.detach()
        micro = self.args.opd_normalization == "micro_batch"
        # DDP averages gradients over processes, so a global mean needs the number of processes in the numerator
        normalizer = inputs["opd_items_in_step"] / self.accelerator.num_processes
        if micro:
            normalizer = mask.sum() if self._chunk_tokens is None else float(self._chunk_tokens[1])
        loss, stats = opd_loss(
            student_logps,
            teacher_logps,
            mask,
            beta=self.args.opd_beta,
            normalizer=normalizer,
            variant=self.args.opd_variant,
            response_mask=response,
            rollout_logps=self._rollout_logps(inputs) if self.args.opd_variant == "k3" else None,
            units=inputs.get("opd_units"),
            flip=~inputs["success"] if self.args.opd_polarity else None,
            positive_only=self.args.opd_tokens == "positive",
        )
        self._note_opd(stats, student_logps, teacher_logps, mask, inputs["success"])
        return loss / self.current_gradient_accumulation_steps if micro else loss

    @staticmethod
    def _rollout_logps(inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Log-probs of the policy that sampled: vLLM's own, else those of its weights; None where they are the current
        ones."""
        return inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))

    def _note_opd(self, stats: OPDStats, student_logps, teacher_logps, mask, success) -> None:
        """Sum the term's statistics over an optimizer step's micro-batches, and over processes at its end."""
        with torch.no_grad():
            shift = torch.where(mask > 0, (teacher_logps - student_logps).float(), 0.0)
            won = success.unsqueeze(1) * mask
            lost = mask - won
            split = torch.stack([(shift * won).sum(), won.sum(), (shift * lost).sum(), lost.sum()]).float()
            window = torch.cat([stats.to_tensor().float(), split])
        self._opd_window = window if self._opd_window is None else self._opd_window + window
        if not self.accelerator.sync_gradients:
            return
        totals = self.accelerator.reduce(self._opd_window, reduction="sum").cpu()
        self._opd_window = None
        stats = OPDStats.from_tensor(totals[:-4])
        won_sum, won_count, lost_sum, lost_count = totals[-4:].tolist()
        metrics = self._metrics["train"]
        metrics["opd/loss"].append(stats.loss.item())
        metrics["opd/weight"].append(self.opd_weight)
        metrics["opd/gate"].append(stats.gate.item())
        metrics["opd/gate_over_half"].append(stats.gate_over_half_share.item())
        metrics["opd/shift"].append(stats.shift.item())
        metrics["opd/shift_abs"].append(stats.shift_abs.item())
        metrics["opd/active_share"].append(stats.active_share.item())
        metrics["opd/shift_success"].append(won_sum / won_count if won_count else float("nan"))
        metrics["opd/shift_failure"].append(lost_sum / lost_count if lost_count else float("nan"))

    def training_step(self, model, inputs, num_items_in_batch=None) -> Tensor:
        """TRL 1.16's step; its `step_time` holds rollouts as well, so the update's own seconds are kept apart."""
        self._prepare_seconds = 0.0
        started = time.perf_counter()
        if self.args.max_tokens_per_forward is None:
            loss = super().training_step(model, inputs, num_items_in_batch)
        else:
            loss = self._step_in_parts(model, inputs, num_items_in_batch)
        self._update_seconds += time.perf_counter() - started - self._prepare_seconds
        if self.accelerator.sync_gradients:
            self._record_seconds(update=self._update_seconds)
            self._update_seconds = 0.0
        return loss

    def _step_in_parts(self, model, inputs, num_items_in_batch) -> Tensor:
        """A micro-batch in forward and backward passes of at most `max_tokens_per_forward` padded tokens.

        Gradients are synchronized with the last part alone: under DDP by `no_sync`, under DeepSpeed (where that does
        nothing) by the flag that tells its engine to step.
        """
        started = time.perf_counter()
        model.train()
        chunk = self._chunk(inputs)
        self._prepare_seconds += time.perf_counter() - started
        self._chunk_tokens = (sum(row.loss_tokens for row in chunk), sum(row.opd_tokens for row in chunk))
        parts = self._equal_parts(chunk)
        gradient_state = self.accelerator.gradient_state
        synchronizes = gradient_state.sync_gradients
        total = torch.zeros((), device=self.accelerator.device)
        try:
            for part in parts[:-1]:
                self._part = part
                gradient_state._set_sync_gradients(False)
                with self.accelerator.no_sync(model):
                    total += Trainer.training_step(self, model, inputs, num_items_in_batch)
            self._part = parts[-1]
            gradient_state._set_sync_gradients(synchronizes)
            # TRL times the call below alone
            self._current_train_step_time += time.perf_counter() - started
            return total + super().training_step(model, inputs, num_items_in_batch)
        finally:
            self._part = self._chunk_tokens = None
            gradient_state._set_sync_gradients(synchronizes)

    def _equal_parts(self, chunk: list[TrainRow]) -> list[list[TrainRow]]:
        """The chunk under the token budget: as many parts, with as many rows each, on every process (TRL gathers a
        value a row for its metrics)."""
        lengths = [
            (max(len(row.prompt_ids), len(row.teacher_prompt_ids)), len(row.row.completion_ids)) for row in chunk
        ]
        parts = [[chunk[i] for i in part] for part in split_by_tokens(lengths, self.args.max_tokens_per_forward)]
        if self.accelerator.num_processes == 1:
            return parts
        parts += [[]] * (self._over_processes(len(parts), "max") - len(parts))
        sizes = torch.tensor([[len(part) for part in parts]], device=self.accelerator.device)
        largest = self.accelerator.gather(sizes).max(dim=0).values.tolist()
        pad_token_id = self._tokenizer.pad_token_id
        vision = self._filler_vision
        parts = [fill_up(part, size, pad_token_id, vision) for part, size in zip(parts, largest, strict=True)]
        for row in (row for part in parts for row in part if row.filler):
            # a part of fillers alone has what the others have, or TRL misses it
            for name in ("old_logps", "ref_logps"):
                if getattr(row, name) is None and getattr(chunk[0], name) is not None:
                    setattr(row, name, torch.zeros(1))
        return parts

    # --------------------------------------------------------------------------------------------------- evaluation

    @property
    def panel(self) -> list[Task]:
        """The tasks that `evaluate` plays."""
        if self._panel is None:
            self._panel = self._select_tasks(*self._eval_choice)
        return self._panel

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Play the panel at the evaluation temperature, without a skill.

        Replaces `Trainer.evaluate` (transformers 5): TRL's plays at the training temperature, and a task twice when the
        panel does not divide by the processes. Sampling has its own seed, so that evaluating changes no training.

        Returns `{prefix}_success`, `{prefix}_success/<family>`, return, episode length, invalid share.
        """
        tasks = self.panel if eval_dataset is None else self._select_tasks(eval_dataset, self._eval_choice[1], None)
        tasks = [task for task in tasks for _ in range(self.args.eval_rounds)]
        mine = tasks[self.accelerator.process_index :: self.accelerator.num_processes]
        settings = self.evaluation_settings()
        started = time.perf_counter()
        self.model.eval()
        devices = [self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.args.seed + self.accelerator.process_index)
            trajectories = rollout(self.benchmark, mine, self.policy, settings)
        episodes = gather_object([Episode.of(trajectory) for trajectory in trajectories])
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in _panel_metrics(episodes).items()}
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - started
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def evaluation_settings(self) -> RolloutSettings:
        """The training episodes' settings at the evaluation temperature."""
        sampling = replace(self.rollout_settings.sampling, temperature=self.args.eval_temperature)
        return replace(self.rollout_settings, sampling=sampling)

    # ------------------------------------------------------------------------------------------------------ metrics

    def _over_processes(self, value: int, reduction: str) -> int:
        if self.accelerator.num_processes == 1:
            return value
        values = self.accelerator.gather(torch.tensor([value], device=self.accelerator.device))
        return int(values.max() if reduction == "max" else values.sum())

    def _gather_equal(self, values: Tensor) -> Tensor:
        """Concatenate over processes a tensor that has the same shape on all of them."""
        if self.accelerator.num_processes == 1:
            return values
        return self.accelerator.gather(values.to(self.accelerator.device)).cpu()

    def _record(self, shares: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Log sum / count over all processes under each name; NaN (which TRL's log leaves out) for a count of 0."""
        values = torch.tensor(list(shares.values()), dtype=torch.float32, device=self.accelerator.device)
        totals = self.accelerator.reduce(values, reduction="sum").tolist()
        means = {}
        for name, (total, count) in zip(shares, totals, strict=True):
            means[name] = total / count if count else float("nan")
            self._metrics["train"][name].append(means[name])
        return means

    def _record_seconds(self, **seconds: float) -> None:
        for name, value in seconds.items():
            self._metrics["train"][f"time/{name}"].append(value)

    def _log_episodes(self, trajectories: list[Trajectory], rows: list[TrainRow]) -> None:
        """What TRL 1.16's `_generate` and `_generate_and_score_completions` log, and what episodes have besides."""
        sound = [trajectory for trajectory in trajectories if not trajectory.masked]
        steps = [step for trajectory in sound for step in trajectory.steps]
        shares = {
            "rollout/return": (sum(t.episode_return for t in sound), len(sound)),
            "rollout/success": (sum(t.success for t in sound), len(sound)),
            "rollout/episode_length": (sum(len(t.steps) for t in sound), len(sound)),
            "rollout/invalid_actions": (sum(not step.action.valid for step in steps), len(steps)),
            "rollout/replies_cut": (sum(not step.finished for step in steps), len(steps)),
            "rollout/prompts_shortened": (sum(t.prompts_shortened for t in sound), len(steps)),
            "rollout/masked": (len(trajectories) - len(sound), len(trajectories)),
        }
        for family in self.benchmark.families:
            of_family = [trajectory for trajectory in sound if trajectory.task.family == family]
            shares[f"rollout/success/{family}"] = (sum(t.success for t in of_family), len(of_family))
        for reason in StopReason:
            stopped = sum(t.stop_reason is reason for t in trajectories)
            shares[f"rollout/stop/{reason.value}"] = (stopped, len(trajectories))
        self._record(shares)
        self._log_completions(trajectories, rows)
        if broken := [trajectory for trajectory in trajectories if trajectory.masked]:
            logger.warning(
                "%d of %d episodes were broken by their environment and are left out; the first: %s",
                len(broken),
                len(trajectories),
                broken[0].error,
            )

    def _log_completions(self, trajectories: list[Trajectory], rows: list[TrainRow]) -> None:
        device = self.accelerator.device
        metrics = self._metrics["train"]
        per_trajectory = [[] for _ in trajectories]
        for row in rows:
            per_trajectory[row.row.trajectory].append(row)
        sampled = torch.tensor([sum(r.loss_tokens for r in own) for own in per_trajectory], device=device)
        ended = torch.tensor([bool(t.steps) and t.steps[-1].finished for t in trajectories], device=device)
        prompt_tokens = torch.tensor(
            sum(r.length - r.loss_tokens for own in per_trajectory for r in own), device=device, dtype=torch.long
        )
        returns = torch.tensor([t.episode_return for t in trajectories], dtype=torch.float32, device=device)
        sampled, ended = self._gather_equal(sampled), self._gather_equal(ended)
        returns = self._gather_equal(returns)
        self.state.num_input_tokens_seen += int(sampled.sum()) + int(self.accelerator.reduce(prompt_tokens, "sum"))
        metrics["num_tokens"] = [self.state.num_input_tokens_seen]
        lengths = sampled.float()
        ended_lengths = lengths[ended] if ended.any() else torch.zeros(1)
        for name, values in (("", lengths), ("terminated_", ended_lengths)):
            metrics[f"completions/mean_{name}length"].append(values.mean().item())
            metrics[f"completions/min_{name}length"].append(values.min().item())
            metrics[f"completions/max_{name}length"].append(values.max().item())
        metrics["completions/clipped_ratio"].append((~ended).float().mean().item())
        for name in ("reward", "rewards/episode_return/mean"):
            metrics[name].append(returns.mean().item())
        for name in ("reward_std", "rewards/episode_return/std"):
            metrics[name].append(returns.std().item() if len(returns) > 1 else 0.0)
        if not self.log_completions:
            return
        advantages = [sum(r.advantage for r in own) / len(own) if own else 0.0 for own in per_trajectory]
        self._logs["prompt"].extend(gather_object([_as_prompt(t) for t in trajectories]))
        self._logs["completion"].extend(gather_object([_as_completion(t) for t in trajectories]))
        self._logs["rewards"]["episode_return"].extend(returns.tolist())
        self._logs["advantages"].extend(gather_object(advantages))
        self._logs["extra"]["skill"].extend(gather_object([t.skill.text if t.skill else "" for t in trajectories]))

    # -------------------------------------------------------------------------------------------------- checkpoints

    def train(self, *args, **kwargs):
        """transformers' `train`; a vLLM server that is lost for good leaves a checkpoint behind.

        Raises:
            VLLMServerError: the server is lost, or (WeightSyncError) has other weights than the trainer.
        """
        try:
            return super().train(*args, **kwargs)
        except WeightSyncError:
            raise  # a run that trained on wrong log-probs is nothing to go on from
        except VLLMServerError as error:
            raise VLLMServerError(f"{error}. {self._save_for_later()}") from error

    def _run_epoch(self, *args, **kwargs) -> None:
        """transformers' (read in 5.17 and 5.24), which trains one update more when a finished run is resumed."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _save_for_later(self) -> str:
        """A checkpoint of the last finished update, and how to go on from it."""
        if self.state.global_step == 0:
            return "No update was finished, so nothing was saved"
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if not (folder / COMPLETE_FILE).is_file():
            self._save_checkpoint(self.model_wrapped, trial=None)
        return (
            f"Update {self.state.global_step} is saved in {folder}; start the server again and go on with "
            "--resume_from_checkpoint auto"
        )

    def create_model_card(self, model_name=None, dataset_name=None, tags=None) -> None:
        """TRL 1.16 writes its general template; this card has the run's settings and what was measured of it."""
        if self.is_world_process_zero():
            from .model_card import trainer_card

            more = [tags] if isinstance(tags, str) else tags or ()
            write_atomic(Path(self.args.output_dir) / "README.md", str(trainer_card(self, model_name, more)))

    def _save_checkpoint(self, model, trial) -> None:
        """TRL 1.16's checkpoint, then what a mid-cycle resume needs, then a marker that says it is whole."""
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        state = {"step": self._step}
        if self._step % (self.args.steps_per_generation * self.num_iterations):
            state["rows"] = [[_row_state(row) for row in chunk] for chunk in self._buffered_inputs]
            state["tokens"] = self._step_tokens
        if self._analyzer_copy is not None:
            state["analyzer"] = self._analyzer_copy.state_dict()
        if self._teacher_copy is not None:
            state["teacher"] = self._teacher_copy.state_dict()
        torch.save(state, folder / STATE_FILE.format(rank=self.accelerator.process_index))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_complete(folder)

    def _load_optimizer_and_scheduler(self, checkpoint) -> None:
        """TRL 1.16's, and the position inside a generation cycle, which TRL starts again from 0."""
        with _plain_cpu(self.args):
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint) / STATE_FILE.format(rank=self.accelerator.process_index)
        if not path.is_file():
            return
        state = torch.load(path, weights_only=True)
        self._step = state["step"]
        if "rows" in state:
            self._buffered_inputs = [[_row_from_state(row) for row in chunk] for chunk in state["rows"]]
            self._step_tokens = state["tokens"]
            shown = any(row.row.image is not None for chunk in self._buffered_inputs for row in chunk)
            self._filler_vision = self.chat.vision if shown else None
        if self._analyzer_copy is not None and "analyzer" in state:
            self._analyzer_copy.load_state_dict(state["analyzer"])
        if self._teacher_copy is not None:
            if "teacher" in state:
                self._teacher_copy.load_state_dict(state["teacher"])
            else:
                logger.warning("%s holds no teacher: under teacher_sync_steps it begins anew with these weights", path)


class WeightsCopy:
    """The analyzer's or the teacher's own weights, refreshed from the policy's every `sync_steps` generation batches.

    Only trained parameters are kept (an adapter's alone under LoRA), on the CPU, and exchanged with the live ones for
    the time of an analysis or a scoring.
    """

    def __init__(self, trainer: SEEDTrainer, sync_steps: int):
        self._trainer = trainer
        self._sync_steps = sync_steps
        self._weights: dict[str, Tensor] | None = None
        self._uses = 0

    def _trained(self) -> dict[str, Tensor]:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return {name: parameter.data for name, parameter in model.named_parameters() if parameter.requires_grad}

    @contextmanager
    def in_place(self):
        """These weights stand in for the policy's inside this context."""
        if self._uses % self._sync_steps == 0:
            self._weights = {name: value.cpu().clone() for name, value in self._trained().items()}
        self._uses += 1
        live = {name: value.clone() for name, value in self._trained().items()}
        try:
            self._copy(self._weights)
            yield
        finally:
            self._copy(live)

    def _copy(self, weights: Mapping[str, Tensor]) -> None:
        for name, value in self._trained().items():
            value.copy_(weights[name])

    def state_dict(self) -> dict:
        return {"uses": self._uses, "weights": self._weights}

    def load_state_dict(self, state: Mapping) -> None:
        self._uses, self._weights = state["uses"], state["weights"]


# ------------------------------------------------------------------------------------------------------------- helpers


@contextmanager
def _plain_cpu(args: SEEDConfig):
    """Inside, a numbered CPU is called plain `cpu`: with several processes on CPUs transformers (5.24) maps a checkpoint's
    tensors to `cpu:0`, a place that torch cannot load to."""
    if args.device.type != "cpu":
        yield
        return
    numbered, args.__dict__["_setup_devices"] = args.device, torch.device("cpu")
    try:
        yield
    finally:
        args.__dict__["_setup_devices"] = numbered


def _vision_processor(model: str, args: SEEDConfig):
    """The processor of a vision-language model, left-padding as TRL 1.16 wants it, or None for TRL to find a tokenizer."""
    init = args.model_init_kwargs or {}
    init = {name: init[name] for name in ("revision",) if init.get(name) is not None}
    processor = load_processor(model, trust_remote_code=args.trust_remote_code, **init)
    if processor is not None:
        processor.tokenizer.padding_side = processor.tokenizer.truncation_side = "left"
    return processor


def _fill_in_published_settings(args: SEEDConfig, bench: Benchmark) -> None:
    """Settings left at None become the benchmark's published ones."""
    published = bench.settings
    defaults = {
        "max_env_steps": published.max_steps,
        "history_length": published.history_length,
        "max_prompt_length": published.max_prompt_length,
        "max_completion_length": published.max_response_length,
        "invalid_action_penalty": published.invalid_action_penalty,
    }
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.scale_rewards == "benchmark":
        args.scale_rewards = "group" if published.scale_advantages else "none"


def _fit_to_model(args: SEEDConfig, positions: int | None) -> None:
    """Lengths that the model's position embeddings cannot take are lowered, and said so."""
    if positions is None:
        return
    if args.max_context_length is None:
        args.max_context_length = positions
    if args.algorithm == "grpo" or args.skill_source != "policy" or args.analyzer_max_context <= positions:
        return
    logger.warning("analyzer_max_context is lowered from %d to the model's %d", args.analyzer_max_context, positions)
    args.analyzer_max_context = positions
    if args.analyzer_max_tokens >= positions:
        logger.warning("analyzer_max_tokens is lowered from %d to %d", args.analyzer_max_tokens, positions // 4)
        args.analyzer_max_tokens = positions // 4


def longest_request(args: SEEDConfig) -> int:
    """Tokens of the longest request that a run sends to vLLM: a prompt and its reply, a transcript, or an analysis."""
    longest = args.max_prompt_length + args.max_completion_length
    if args.context == "transcript" and args.max_context_length is not None:
        longest = args.max_context_length
    # a scored sequence is a prompt to vLLM, which wants to add one token
    longest += args.teacher_backend == "vllm"
    if args.algorithm != "grpo" and args.skill_source == "policy":
        longest = max(longest, args.analyzer_max_context)
    return longest


def importance_sampling_ratio(
    old_logps: Tensor, sampled_logps: Tensor, mask: Tensor, mode: str, low: float | None, high: float | None
) -> Tensor:
    """TRL 1.16's correction for a sampler that differs from the trainer: `(rows, tokens)`, or `(rows, 1)` for the
    sequence modes."""
    difference = torch.nan_to_num((old_logps - sampled_logps) * mask, nan=0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = torch.exp(difference)
    if mode.endswith("truncate"):
        return torch.clamp(ratio, min=low, max=high)
    outside = (ratio < (-math.inf if low is None else low)) | (ratio > (math.inf if high is None else high))
    return ratio.masked_fill(outside, 0.0)


def _panel_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    score = Score.of(episodes)
    metrics = {
        "success": score.success,
        "return": score.mean_return,
        "episode_length": score.mean_steps,
        "invalid_actions": score.invalid_share,
        "episodes": score.episodes,
    }
    if score.score is not None:
        metrics["score"] = score.score
    metrics.update(score.metrics)
    for family in sorted({episode.family for episode in episodes}):
        metrics[f"success/{family}"] = Score.of([e for e in episodes if e.family == family]).success
    return metrics


def _as_prompt(trajectory: Trajectory) -> list[dict[str, str]]:
    return [{"role": "user", "content": trajectory.steps[0].prompt if trajectory.steps else trajectory.task.goal}]


def _as_completion(trajectory: Trajectory) -> list[dict[str, str]]:
    lines = []
    for step in trajectory.steps:
        lines += [step.reply, f"> {step.action.text}"]
    return [{"role": "assistant", "content": "\n".join(lines)}]


def _row_state(row: TrainRow) -> dict[str, Any]:
    image = row.row.image
    state = asdict(replace(row, row=replace(row.row, image=None)))
    state["row"]["image"] = None if image is None else png_base64(image)
    return state


def _row_from_state(state: Mapping[str, Any]) -> TrainRow:
    row = Row(**state["row"])
    if row.image is not None:
        row.image = image_from_png(row.image)
    return TrainRow(**{**state, "row": row})


def mark_complete(folder: Path) -> None:
    """Say that the checkpoint in `folder` was written to its end."""
    write_atomic(folder / COMPLETE_FILE, json.dumps({"complete": True}) + "\n")


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint of a run that was written to its end; one cut off by a crash is passed over."""
    whole = [
        (int(folder.name.rsplit("-", 1)[1]), folder)
        for folder in Path(output_dir).glob("checkpoint-*")
        if folder.name.rsplit("-", 1)[1].isdigit() and (folder / COMPLETE_FILE).is_file()
    ]
    return max(whole)[1] if whole else None
