"""`SEEDConfig`: TRL's `GRPOConfig` with the settings of episodes, hindsight and distillation."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import GRPOConfig

from ._machine import only_cpus
from .advantages import ADVANTAGE_STATISTICS
from .opd import GATED_VARIANTS, OPD_VARIANTS
from .opd_units import OPD_SCOPES, OPD_TOKENS
from .rollout import CONTEXTS
from .skill_sources import SKILL_ASSIGNMENTS

ALGORITHMS = ("seed", "grpo")
TEACHERS = ("rollout", "live")
TEACHER_BACKENDS = ("local", "vllm")
WEIGHT_SYNCS = ("auto", "nccl", "filesystem")
OPD_NORMALIZATIONS = ("global", "micro_batch")
SKILL_SOURCES = ("policy", "rule", "file", "endpoint")
OPD_ROWS = ("all", "success")
PROMPT_STYLES = ("default", "compact")

# losses whose denominator counts tokens: a filler row of no tokens changes nothing
TOKEN_LOSSES = ("dapo", "cispo", "vespo", "bnpo")

# options of the method that SEEDTrainer replaces: there they would be ignored without a word
_IGNORED_BY_EPISODES = {
    "mask_truncated_completions": (False, "over-long replies are counted as invalid actions instead"),
    "reward_weights": (None, "an episode has one return, the benchmark's"),
    "multi_objective_aggregation": ("sum_then_normalize", "an episode has one return, the benchmark's"),
    "use_transformers_continuous_batching": (False, "use use_vllm: true for fast rollouts"),
    "max_tool_calling_iterations": (None, "use max_env_steps"),
    "cache_implementation": (None, "the episode sampler keeps a dynamic cache"),
    "generation_kwargs": (None, "use temperature, top_p, top_k, min_p, repetition_penalty, max_completion_length"),
    "vllm_structured_outputs_regex": (None, "replies are free text; the analyzer's are constrained by its own schema"),
}


@dataclass
class SEEDConfig(GRPOConfig):
    r"""
    Configuration class for the [`SEEDTrainer`].

    Holds the parameters particular to SEED training; for the others see TRL's `GRPOConfig`. Batch sizes count episodes:
    `per_device_train_batch_size * steps_per_generation * processes` episodes are played per generation batch, in groups
    of `num_generations`; the rows they are cut into are spread evenly over the `steps_per_generation` micro-batches.
    `None` means the benchmark's published value.

    Parameters:
        > Parameters that control the method

        algorithm (`str`, defaults to `"seed"`): `"seed"`, or `"grpo"`: no analysis, no teacher, at GRPO's cost.
        opd_weight (`float`, defaults to `0.01`): lambda, weight of the distillation term.
        opd_weight_decay_steps (`int`, *optional*): optimizer steps over which lambda decays linearly to 0.
        opd_beta (`float`, defaults to `5.0`): sharpness of the confidence gate (`beta` is GRPO's KL coefficient).
        opd_variant (`str`, defaults to `"seed"`): per-token term, one of `seed_trl.opd.OPD_VARIANTS`. Under `"credit"` there
            is no term: `opd_weight`, in [0, 1], is then the share w of the advantages that the skill re-weighs.
        opd_scope (`str`, defaults to `"token"`): what one probability shift is of: a token, or the sum over an `"action"`
            (its tokens alone have part in the term) or over a `"step"` (all sampled tokens of one reply).
        opd_tokens (`str`, defaults to `"all"`): or only the tokens with a `"positive"` shift, or of the `"action"`.
        opd_rows (`str`, defaults to `"all"`): or only those of trajectories that ended in `"success"`.
        opd_polarity (`bool`, defaults to `False`): gate 1 - g on the rows of failed trajectories.
        opd_normalization (`str`, defaults to `"global"`): divide by the active tokens of the whole optimizer step over
            all processes, or (`"micro_batch"`, as released) of each micro-batch.
        teacher (`str`, defaults to `"rollout"`): weights that score under the skill: those that sampled, once per
            generation batch, or (`"live"`, as in the paper) the current ones.
        teacher_sync_steps (`int`, defaults to `1`): refresh the teacher's weights every this many generation batches. Over 1
            the teacher lags behind the policy, which then cannot pull it along; larger than the run, it stays the start.

        > Parameters that control the advantages

        advantage_statistics (`str`, defaults to `"step_row"`): group mean and deviation over all step rows (as
            released) or over the trajectory returns (`"trajectory"`, as in the paper).
        advantage_eps (`float`, defaults to `1e-6`): added to the deviation (TRL's own is 1e-4).
        scale_rewards (`str`, defaults to `"benchmark"`): `"group"` divides by the deviation, `"none"` does not.
        invalid_action_penalty (`float`, *optional*): taken off the return of a row for each invalid action in it.

        > Parameters that control the episodes

        context (`str`, defaults to `"steps"`): one row a decision (as published) or one a `"transcript"`.
        max_env_steps (`int`, *optional*): horizon in decisions.
        history_length (`int`, *optional*): (observation, action) pairs in a `steps` prompt.
        max_prompt_length (`int`, *optional*): tokens of a prompt; history gives way first, task and skill never.
        max_completion_length (`int`, *optional*): tokens of one reply.
        max_context_length (`int`, *optional*): tokens of a whole transcript; default what the model can take.
        env_timeout (`float`, defaults to `60.0`): seconds an environment may take for one step.
        env_workers (`int`, defaults to `0`): environments that step at the same time.
        rollout_batch_size (`int`, defaults to `256`): rows the Transformers sampler takes at once.
        train_split (`str`, defaults to `"train"`): split to train on.
        max_train_tasks (`int`, *optional*): train on the first this many tasks, spread over families.
        show_progress (`bool`, defaults to `False`): show a bar with the success so far for each rollout.

        > Parameters that control the memory

        max_tokens_per_forward (`int`, *optional*): padded tokens of a forward pass; a micro-batch over it is done in
            parts, with the same gradient. Teacher, reference and old log-probs keep to it as well.

        > Parameters that control vLLM (beside TRL's use_vllm, vllm_mode, vllm_server_base_url, ...)

        vllm_weight_sync (`str`, defaults to `"auto"`): how a server gets new weights: `"nccl"` (TRL's engine),
            `"filesystem"` (safetensors in a folder that trainer and server both see), or NCCL on CUDA and files elsewhere.
        vllm_sync_folder (`str`, *optional*): that folder; default `vllm_weights` in `output_dir`.
        vllm_sync_check_steps (`int`, defaults to `10`): after the first two weight syncs and every this many, compare
            vLLM's log-probs with the trainer's on a few prompts and stop when they differ; 0 never does.
        vllm_sync_tolerance (`float`, *optional*): mean difference of log-probs that is too much; default 0.0001 when both
            sides compute in float32, else 0.05.
        vllm_request_timeout (`float`, defaults to `1800.0`): seconds one request to the server may take.
        teacher_backend (`str`, defaults to `"local"`): who scores under the skill: this process's model or (`"vllm"`) the
            server, which is idle then; needs `teacher: rollout`, server mode and temperature 1.

        > Parameters that control the analyzer

        skill_source (`str`, defaults to `"policy"`): who writes skills: the policy itself, the benchmark's hand-written
            rules, a file of fixed ones, or an outside model behind an OpenAI-compatible endpoint. `"sibling"`,
            `"shuffled"` and `"none"` are short for `"policy"` with that `skill_assignment`.
        skill_assignment (`str`, defaults to `"own"`): whose skill a trajectory's teacher is shown: its own, that of a
            successful `"sibling"` of its group, `"shuffled"` ones of other tasks, or (`"none"`) no skill at all.
        skill_file (`str`, *optional*): that file.
        analyzer_base_url (`str`, *optional*): the endpoint's address, up to `/v1`; default OPENAI_BASE_URL.
        analyzer_model (`str`, defaults to `"glm-5.2"`): the endpoint's name of the model.
        analyzer_api_key_env (`str`, defaults to `"OPENAI_API_KEY"`): the environment variable that holds the key.
        analyzer_max_tokens (`int`, defaults to `4096`): new tokens of an analysis.
        analyzer_max_context (`int`, defaults to `16384`): tokens of prompt and analysis together.
        analyzer_sync_steps (`int`, defaults to `1`): refresh the analyzer's weights every this many generation batches.
        analyzer_prompt_style (`str`, defaults to `"default"`): or `"compact"`, for tiny models.

        > Parameters that control the evaluation

        eval_split (`str`, *optional*): split of the panel; default the benchmark's second.
        max_eval_tasks (`int`, *optional*): the panel's first this many tasks, spread over families.
        eval_rounds (`int`, defaults to `1`): times the panel is played.
        eval_temperature (`float`, defaults to `0.4`): sampling temperature of `evaluate`.
    """

    # GRPO settings whose published value is not TRL's default
    beta: float = field(default=0.01, metadata={"help": "KL coefficient (0.001 for search, as published)."})
    delta: float | None = field(default=3.0, metadata={"help": "Dual clip for negative advantages."})
    disable_dropout: bool = field(
        default=True, metadata={"help": "Rollouts and scoring run in train mode, where dropout would disturb both."}
    )
    use_bias_correction_kl: bool = field(
        default=False, metadata={"help": "Weight the KL term by the importance ratio. Off, as published."}
    )
    vllm_importance_sampling_correction: bool = field(
        default=False, metadata={"help": "Correct for differences between sampler and trainer. Off, as published."}
    )
    logging_steps: float = field(default=1, metadata={"help": "Log every this many optimizer steps."})
    scale_rewards: str = field(
        default="benchmark",
        metadata={"help": "Divide advantages by the group's deviation: 'group', 'none', or the benchmark's own."},
    )

    # the method
    algorithm: str = field(default="seed", metadata={"help": "'seed', or 'grpo' (no analysis, no teacher)."})
    opd_weight: float = field(default=0.01, metadata={"help": "Lambda, weight of the distillation term."})
    opd_weight_decay_steps: int | None = field(
        default=None, metadata={"help": "Optimizer steps over which lambda decays linearly to 0."}
    )
    opd_beta: float = field(default=5.0, metadata={"help": "Sharpness of the confidence gate."})
    opd_variant: str = field(default="seed", metadata={"help": f"Per-token term: {', '.join(OPD_VARIANTS)}."})
    opd_scope: str = field(
        default="token", metadata={"help": "What one probability shift is of: 'token', 'action' or 'step'."}
    )
    opd_tokens: str = field(default="all", metadata={"help": "Tokens with a term: 'all', 'positive' or 'action'."})
    opd_rows: str = field(default="all", metadata={"help": "Rows with a term: 'all', or of a 'success' only."})
    opd_polarity: bool = field(default=False, metadata={"help": "Gate 1 - g on the rows of failed trajectories."})
    teacher_sync_steps: int = field(
        default=1, metadata={"help": "Refresh the teacher's weights every this many generation batches."}
    )
    opd_normalization: str = field(
        default="global", metadata={"help": "Count active tokens over the optimizer step ('global') or 'micro_batch'."}
    )
    teacher: str = field(
        default="rollout", metadata={"help": "Weights that score under the skill: 'rollout', 'live'."}
    )

    # advantages
    advantage_statistics: str = field(
        default="step_row", metadata={"help": "Group statistics over 'step_row' values or 'trajectory' returns."}
    )
    advantage_eps: float = field(default=1e-6, metadata={"help": "Added to the group's standard deviation."})
    invalid_action_penalty: float | None = field(
        default=None, metadata={"help": "Taken off a row's return for each invalid action. None: the benchmark's."}
    )

    # episodes
    context: str = field(
        default="steps", metadata={"help": "One row a decision ('steps') or an episode ('transcript')."}
    )
    max_env_steps: int | None = field(
        default=None, metadata={"help": "Horizon of an episode in decisions. None: the benchmark's."}
    )
    history_length: int | None = field(
        default=None, metadata={"help": "(Observation, action) pairs in a prompt. None: the benchmark's."}
    )
    max_prompt_length: int | None = field(
        default=None, metadata={"help": "Tokens of a prompt; history gives way first. None: the benchmark's."}
    )
    max_completion_length: int | None = field(
        default=None, metadata={"help": "Tokens of one reply. None: the benchmark's."}
    )
    max_context_length: int | None = field(
        default=None, metadata={"help": "Tokens of a whole transcript. None: what the model can take."}
    )
    env_timeout: float = field(default=60.0, metadata={"help": "Seconds an environment may take for one step."})
    env_workers: int = field(default=0, metadata={"help": "Environments that step at the same time."})
    rollout_batch_size: int = field(
        default=256, metadata={"help": "Rows that the Transformers sampler takes at once."}
    )
    train_split: str = field(default="train", metadata={"help": "Split of the benchmark to train on."})
    max_train_tasks: int | None = field(
        default=None, metadata={"help": "Train on this many tasks, spread evenly over the families."}
    )
    show_progress: bool = field(default=False, metadata={"help": "Show a bar with the success so far per rollout."})

    # memory
    max_tokens_per_forward: int | None = field(
        default=None, metadata={"help": "Padded tokens of a forward pass; larger micro-batches are done in parts."}
    )

    # vLLM
    vllm_weight_sync: str = field(
        default="auto", metadata={"help": "How a vLLM server gets weights: 'nccl', 'filesystem', or 'auto'."}
    )
    vllm_sync_folder: str | None = field(
        default=None,
        metadata={"help": "Folder for 'filesystem', as both sides see it. None: output_dir/vllm_weights."},
    )
    vllm_sync_check_steps: int = field(
        default=10,
        metadata={"help": "Weight syncs between comparisons of vLLM's log-probs with the trainer's; 0: none."},
    )
    vllm_sync_tolerance: float | None = field(
        default=None, metadata={"help": "Mean difference of log-probs that stops the run. None: by precision."}
    )
    vllm_request_timeout: float = field(
        default=1800.0, metadata={"help": "Seconds that one request to the vLLM server may take."}
    )
    teacher_backend: str = field(
        default="local", metadata={"help": "Who scores under the skill: 'local', or the 'vllm' server."}
    )

    # analyzer
    skill_source: str = field(default="policy", metadata={"help": f"Who writes skills: {', '.join(SKILL_SOURCES)}."})
    skill_assignment: str = field(
        default="own", metadata={"help": f"Whose skill a teacher is shown: {', '.join(SKILL_ASSIGNMENTS)}."}
    )
    skill_file: str | None = field(default=None, metadata={"help": "Fixed skills, for skill_source 'file'."})
    analyzer_base_url: str | None = field(
        default=None, metadata={"help": "Address up to /v1, for skill_source 'endpoint'. None: OPENAI_BASE_URL."}
    )
    analyzer_model: str = field(default="glm-5.2", metadata={"help": "The endpoint's name of the model."})
    analyzer_api_key_env: str = field(
        default="OPENAI_API_KEY", metadata={"help": "Environment variable that holds the endpoint's key."}
    )
    analyzer_max_tokens: int = field(default=4096, metadata={"help": "New tokens of an analysis."})
    analyzer_max_context: int = field(default=16384, metadata={"help": "Tokens of an analysis and its prompt."})
    analyzer_sync_steps: int = field(
        default=1, metadata={"help": "Refresh the analyzer's weights every this many generation batches."}
    )
    analyzer_prompt_style: str = field(
        default="default", metadata={"help": "Wording of the analysis prompt: 'default', 'compact' (tiny models)."}
    )

    # evaluation
    num_generations_eval: int = field(
        default=1,
        metadata={"help": "Not used: the panel is played eval_rounds times (1 keeps TRL's batch check quiet)."},
    )
    eval_split: str | None = field(default=None, metadata={"help": "Split of the panel. None: the second split."})
    max_eval_tasks: int | None = field(
        default=None, metadata={"help": "Tasks of the panel, spread evenly over the families."}
    )
    eval_rounds: int = field(default=1, metadata={"help": "Times the panel is played."})
    eval_temperature: float = field(default=0.4, metadata={"help": "Sampling temperature of evaluate()."})

    def __post_init__(self):
        if self.skill_source in SKILL_ASSIGNMENTS[1:]:
            if self.skill_assignment not in ("own", self.skill_source):
                raise ValueError(
                    f"skill_source {self.skill_source!r} is short for skill_source 'policy' with that skill_assignment, "
                    f"and skill_assignment is {self.skill_assignment!r}; leave one of them out"
                )
            self.skill_source, self.skill_assignment = "policy", self.skill_source
        self._check_choices()
        self._check_distillation()
        self._check_ignored()
        self.use_cpu = self.use_cpu or only_cpus()
        super().__post_init__()
        self._check_batches()

    def _check_choices(self) -> None:
        choices = {
            "algorithm": ALGORITHMS,
            "opd_variant": tuple(OPD_VARIANTS),
            "opd_scope": OPD_SCOPES,
            "opd_tokens": OPD_TOKENS,
            "opd_rows": OPD_ROWS,
            "opd_normalization": OPD_NORMALIZATIONS,
            "teacher": TEACHERS,
            "teacher_backend": TEACHER_BACKENDS,
            "vllm_weight_sync": WEIGHT_SYNCS,
            "advantage_statistics": ADVANTAGE_STATISTICS,
            "context": CONTEXTS,
            "skill_source": SKILL_SOURCES,
            "skill_assignment": SKILL_ASSIGNMENTS,
            "analyzer_prompt_style": PROMPT_STYLES,
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                known = (*allowed, *SKILL_ASSIGNMENTS[1:]) if name == "skill_source" else allowed
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}")
        if self.scale_rewards not in ("benchmark", "group", "none", True, False):
            raise ValueError(
                f"scale_rewards must be 'benchmark', 'group' or 'none'; got {self.scale_rewards!r} "
                "(groups of step rows have no batch-wide deviation)"
            )
        if self.loss_type not in TOKEN_LOSSES:
            raise ValueError(
                f"loss_type {self.loss_type!r} divides by rows, and episodes give a different number of rows each "
                f"step; use one of {', '.join(TOKEN_LOSSES)}"
            )
        for name in ("opd_weight", "opd_beta", "advantage_eps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in (
            "analyzer_sync_steps",
            "teacher_sync_steps",
            "analyzer_max_tokens",
            "eval_rounds",
            "rollout_batch_size",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_tokens_per_forward is not None and self.max_tokens_per_forward < 1:
            raise ValueError(f"max_tokens_per_forward must be at least 1, got {self.max_tokens_per_forward}")
        if self.vllm_sync_check_steps < 0:
            raise ValueError(f"vllm_sync_check_steps must be at least 0, got {self.vllm_sync_check_steps}")
        if self.vllm_request_timeout <= 0:
            raise ValueError(f"vllm_request_timeout must be over 0 seconds, got {self.vllm_request_timeout}")
        if self.teacher_sync_steps > 1:
            self._require(
                f"teacher_sync_steps {self.teacher_sync_steps}",
                {"teacher": "rollout", "teacher_backend": "local"},
                "it scores with weights that are kept here",
            )
        if self.teacher_backend == "vllm":
            self._require(
                "teacher_backend 'vllm'",
                {"use_vllm": True, "vllm_mode": "server", "teacher": "rollout", "temperature": 1.0},
                "a server scores prompts under the weights it has, at temperature 1",
            )
        if self.analyzer_max_context <= self.analyzer_max_tokens:
            raise ValueError(
                f"analyzer_max_context ({self.analyzer_max_context}) must exceed analyzer_max_tokens "
                f"({self.analyzer_max_tokens}): the episode has to fit as well"
            )
        if self.skill_source == "file" and not self.skill_file:
            raise ValueError("skill_source is 'file': set skill_file to the file of skills")

    def _check_distillation(self) -> None:
        if self.opd_polarity and self.opd_variant not in GATED_VARIANTS:
            raise ValueError(
                f"opd_polarity turns a gate around, and opd_variant {self.opd_variant!r} has none; use one of "
                f"{', '.join(GATED_VARIANTS)}"
            )
        if self.opd_variant == "credit" and self.opd_weight > 1:
            raise ValueError(f"opd_weight is a share under opd_variant 'credit', in [0, 1]; got {self.opd_weight}")
        if self.opd_variant in ("opsd", "k3") and self.opd_scope != "token":
            raise ValueError(
                f"opd_scope {self.opd_scope!r} sums shifts, which opd_variant {self.opd_variant!r} does not read; for a "
                "term on actions alone set opd_tokens: action"
            )

    def _require(self, option: str, others: dict[str, object], reason: str) -> None:
        for name, needed in others.items():
            if (value := getattr(self, name)) != needed:
                raise ValueError(f"{option} needs {name}: {str(needed).lower()} (here {value!r}): {reason}")

    def _check_ignored(self) -> None:
        for name, (default, instead) in _IGNORED_BY_EPISODES.items():
            if (value := getattr(self, name)) != default:
                raise ValueError(f"{name}={value!r} has no meaning for episodes: {instead}")

    def _check_batches(self) -> None:
        if self.steps_per_generation < self.gradient_accumulation_steps:
            raise ValueError(
                f"steps_per_generation ({self.steps_per_generation}) is less than gradient_accumulation_steps "
                f"({self.gradient_accumulation_steps}): an optimizer step would mix episodes of two policies; "
                "make it equal or a multiple"
            )
        if self.steps_per_generation % self.gradient_accumulation_steps:
            raise ValueError(
                f"steps_per_generation ({self.steps_per_generation}) must be a multiple of "
                f"gradient_accumulation_steps ({self.gradient_accumulation_steps})"
            )


__all__ = ["SEEDConfig"]
