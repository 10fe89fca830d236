"""The tiny embedded policy: its tokenizer, its architecture, and the expert dialogues it learns from.

Shared by `scripts/train_tiny_policy.py`, which makes the shipped weights, and by the tests. The dialogues are played in
generated ALFWorld rooms: an expert that knows no more than the text it has read searches, treats and places, and a
share of its actions is random. With and without a skill in the prompt the expert and its noise are the same, and it
follows what the skill says, right or wrong, then searches on; so nothing but the content of a skill can help.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .context import SKILL_LINE, SKILL_TITLE
from .envs.alfworld.rules import Goal, RuleAnalyzer, contents_of, kind, parse_goal, receptacles_of
from .types import Action, Observation, Skill, Step, StopReason, Task, Trajectory, View

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from .envs.base import Benchmark

# ----------------------------------------------------------------------------------------------------------- tokenizer

END_OF_TURN = "<|im_end|>"
PAD = "<|endoftext|>"
TAGS = ("<think>", "</think>", "<action>", "</action>")
# ChatML as it is written, but a role's whole header is one id: 4 ids around an observation instead of 10.
HEADERS = tuple(f"{newline}<|im_start|>{role}\n" for newline in ("", "\n") for role in ("system", "user", "assistant"))
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PIECES = r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"


def make_tokenizer(texts: Iterable[str], max_words: int = 600) -> PreTrainedTokenizerFast:
    """Whole words where `texts` use them, bytes for anything else: every text decodes to exactly itself.

    Args:
        texts: what the policy will read and write; their most frequent pieces become ids.
        max_words: how many pieces to keep, beside the 256 bytes, the tags and the chat headers.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    reserved = re.compile("|".join(re.escape(text) for text in (*HEADERS, *TAGS, END_OF_TURN, PAD)))
    counts: Counter[str] = Counter()
    for text in texts:
        for part in reserved.split(text):
            counts.update(piece for piece, _ in split.pre_tokenize_str(part))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ranked = sorted((piece for piece in counts if len(piece) > 1), key=lambda piece: (-counts[piece], piece))
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, *ranked[:max_words]])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (PAD, END_OF_TURN, *HEADERS)]
    )
    # not special: a reply decoded without special tokens must still hold them for the action parser
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


# --------------------------------------------------------------------------------------------------------------- model


@dataclass(frozen=True)
class TinyArchitecture:
    """A Qwen3 small enough to train from nothing in minutes. Wider initial weights than usual: it learns to copy sooner."""

    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4
    key_value_heads: int = 4
    head_dim: int = 32
    initializer_range: float = 0.04


def make_model(tokenizer: PreTrainedTokenizerFast, shape: TinyArchitecture | None = None) -> Qwen3ForCausalLM:
    """Random weights from torch's global generator, float32, sized to the tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = shape or TinyArchitecture()
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=4096,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        initializer_range=shape.initializer_range,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


# -------------------------------------------------------------------------------------------------------------- expert


@dataclass(frozen=True)
class Advice:
    """What a skill says about places: where to look first, and where looking is in vain."""

    first: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()


_WAS_AT = re.compile(r"([a-z]+ \d+) was (?:in|on) ([a-z]+ \d+)")
_VAIN = re.compile(r"No ([a-z]+) in ([a-z0-9, ]+)[:.]")
_PLACE_NAME = re.compile(r"[a-z]+ \d+")


def read_skill(skill: str | None, goal: Goal) -> Advice:
    """The places a skill recommends and warns of for this goal; advice about other objects is not for this task."""
    if not skill:
        return Advice()
    told = [place for name, place in _WAS_AT.findall(skill) if kind(name) in (goal.object, goal.target)]
    vain = [place for wanted, listed in _VAIN.findall(skill) if wanted == goal.object for place in _names_in(listed)]
    return Advice(tuple(dict.fromkeys(told)), tuple(vain))


def _names_in(text: str) -> list[str]:
    return _PLACE_NAME.findall(text.replace(" and ", ", "))


APPLIANCES = {"heat": "microwave", "cool": "fridge", "clean": "sinkbasin"}


class Expert:
    """Plays by what it has read. `act` gives the next command, `see` takes the answer to the last one."""

    def __init__(self, goal: Goal, intro: str, skill: str | None, rng: random.Random):
        advice = read_skill(skill, goal)
        self.goal = goal
        self.places = receptacles_of(intro)
        self.told = [place for place in advice.first if place in self.places]
        self.avoid = [place for place in advice.avoid if place not in self.told]
        self.start = rng.randrange(len(self.places))
        self._thought = ""
        self.here: str | None = None
        self.holding: str | None = None
        self.closed: set[str] = set()
        self.searched: set[str] = set()
        self.location: dict[str, str] = {}
        self.treated: set[str] = set()
        self.placed: set[str] = set()
        self.refused: set[str] = set()

    def act(self) -> tuple[str, str]:
        """The next command, and the thought behind it in two to four words: what is to be done with which thing."""
        command = self._command()
        return command, self._thought

    def mistake(self, observation: Observation, rng: random.Random) -> tuple[str, str]:
        """A random command in place of the next one, and the thought that stands before it."""
        return random_command(observation, self.goal, self.places, rng), self._thought

    def _command(self) -> str:
        if self.holding is None:
            return self._fetch(self.goal.object)
        if kind(self.holding) != self.goal.object:
            self._thought = f"move {kind(self.holding)}"
            return self._put_back()
        if self.goal.look:
            return self._use_lamp()
        if self.goal.process and self.holding not in self.treated:
            return self._treat()
        return self._deliver()

    def see(self, action: str, text: str) -> None:
        words = action.split(" ")
        if text == "Nothing happens.":
            self._refusal(words)
            return
        if words[:2] == ["go", "to"]:
            self.here = " ".join(words[2:4])
        elif words[0] == "take":
            self.holding = " ".join(words[1:3])
            self.location.pop(self.holding, None)
            self.placed.discard(self.holding)
        elif words[0] == "move" and self.holding:
            self.location[self.holding] = self.here
            if kind(self.holding) == self.goal.object and kind(self.here) == self.goal.target:
                self.placed.add(self.holding)
            self.holding = None
        elif words[0] == self.goal.process and self.holding:
            self.treated.add(self.holding)
        elif words[0] == "close":
            self.closed.add(" ".join(words[1:3]))
        for place, objects in contents_of(text).items():
            self.closed.discard(place)
            self.searched.add(place)
            for name in objects:
                self.location[name] = place
                if kind(name) == self.goal.object and kind(place) == self.goal.target and not self.goal.process:
                    self.placed.add(name)
        for place in re.findall(r"The ([a-z]+ \d+) is closed\.", text):
            self.closed.add(place)

    def _refusal(self, words: list[str]) -> None:
        if words[0] == "move" and self.here and self.holding == " ".join(words[1:3]):
            self.refused.add(self.here)
        elif words[0] == "take" and self.here == " ".join(words[4:6]):
            self.location.pop(" ".join(words[1:3]), None)
        elif words[:2] == ["go", "to"] and " ".join(words[2:4]) in self.places:
            self.here = " ".join(words[2:4])  # a neighbor at the same spot: one is there already

    def _fetch(self, wanted: str) -> str:
        known = [
            (name, place)
            for name, place in self.location.items()
            if kind(name) == wanted and name not in self.placed and place
        ]
        self._thought = f"{'take' if known else 'find'} {wanted}"
        if not known:
            return self._search()
        name, place = next((pair for pair in known if pair[1] == self.here), known[0])
        return self._at(place, f"take {name} from {place}", opened=True)

    def _search(self) -> str:
        """What the skill names, then the next place of the introduction's list, what the skill warns of last."""
        at = self.places.index(self.here) + 1 if self.here in self.places else self.start
        around = [*self.places[at:], *self.places[:at]]
        if self.here in self.places and self.here not in self.searched:
            around.insert(0, self.here)
        likely = [place for place in around if place not in self.avoid]
        for place in (*self.told, *likely, *around):
            if place not in self.searched:
                return self._at(place, f"examine {place}", opened=True)
        return "look"

    def _at(self, place: str, command: str, opened: bool = False) -> str:
        if place != self.here:
            return f"go to {place}"
        if opened and place in self.closed:
            return f"open {place}"
        return command

    def _put_back(self) -> str:
        if self.here is None or self.here in self.refused:
            return f"go to {next((place for place in self.places if place not in self.refused), self.places[0])}"
        return self._at(self.here, f"move {self.holding} to {self.here}", opened=True)

    def _treat(self) -> str:
        self._thought = f"{self.goal.process} {self.goal.object}"
        appliance = next((place for place in self.places if kind(place) == APPLIANCES[self.goal.process]), None)
        if appliance is None:
            return self._search()
        return self._at(appliance, f"{self.goal.process} {self.holding} with {appliance}")

    def _deliver(self) -> str:
        self._thought = f"move {self.goal.object} to {self.goal.target}"
        targets = [place for place in self.places if kind(place) == self.goal.target and place not in self.refused]
        if not targets:
            return self._search()
        used = [self.location[name] for name in self.placed if self.location.get(name) in targets]
        place = self.here if self.here in targets else (used or targets)[0]
        return self._at(place, f"move {self.holding} to {place}", opened=True)

    def _use_lamp(self) -> str:
        lamps = [(name, place) for name, place in self.location.items() if kind(name) == self.goal.target]
        self._thought = f"{'use' if lamps else 'find'} {self.goal.target}"
        if not lamps:
            return self._search()
        name, place = lamps[0]
        return self._at(place, f"use {name}")


# -------------------------------------------------------------------------------------------------------------- skills

SKILL_KINDS = ("none", "own", "place", "order", "wrong", "other", "useless")
# shares of the dialogues: half without a skill, the rest over six kinds
SKILL_SHARES = {"none": 0.5, "own": 0.2, "place": 0.06, "order": 0.04, "wrong": 0.1, "other": 0.06, "useless": 0.04}

USELESS_SKILLS = (
    "Read the task once more and act step by step.",
    "Stay calm and think before you act.",
    "Do one thing after the other until the task is done.",
    "Look around and use what you see.",
)


def wrong_skill(skill: str, trajectory: Trajectory, goal: Goal, rng: random.Random) -> str | None:
    """The same advice with the object's place swapped for another one of the room; None when it names no place."""
    told = [place for name, place in _WAS_AT.findall(skill) if kind(name) == goal.object]
    if not told:
        return None
    others = [
        place
        for place in receptacles_of(trajectory.steps[0].observation.text)
        if place not in told and kind(place) != goal.target
    ]
    if not others:
        return None
    for place in dict.fromkeys(told):
        skill = re.sub(rf"\b{place}\b", rng.choice(others), skill)
    return skill


def plan_skill(goal: Goal) -> str:
    """Which order works, without any place."""
    if goal.look:
        return f"Find the {goal.object}, take it, then use the {goal.target}."
    if goal.process:
        return f"Find the {goal.object}, {goal.process} it, then move it to a {goal.target}."
    if goal.count == 2:
        return f"Move one {goal.object} to the {goal.target}, then the other."
    return f"Find the {goal.object}, take it and move it to a {goal.target}."


def place_skill(task: Task) -> str | None:
    """Where the wanted objects are, and nothing else, read off the task's walkthrough."""
    goal = parse_goal(task.goal)
    takes = [re.match(r"take ([a-z]+ \d+) from ([a-z]+ \d+)", command) for command in task.payload["walkthrough"]]
    told = [f"The {take[1]} was on {take[2]}." for take in takes if take and kind(take[1]) == goal.object]
    return " ".join(told) if told else None


# ----------------------------------------------------------------------------------------------------------- dialogues


READING_REQUEST = "What does this episode teach?"


@dataclass
class Dialogue:
    """One expert episode as the policy will see it: `kind` is the kind of skill its first message holds."""

    trajectory: Trajectory
    messages: list[dict]
    kind: str = "none"
    skill: str | None = None


@dataclass
class ExpertSettings:
    """How training dialogues are played."""

    max_steps: int = 15
    noise: Sequence[float] = (0.0, 0.1, 0.2)  # share of random actions, drawn once an episode
    shares: dict[str, float] = field(default_factory=lambda: dict(SKILL_SHARES))
    reading: float = 0.35  # share of reading exercises among all dialogues
    # of the episodes that are read: a policy fails more often than the expert, and its failures are to be read too
    reading_noise: Sequence[float] = (0.0, 0.2, 0.4, 0.6)
    expert: type[Expert] = Expert


def play(bench: Benchmark, task: Task, skill: str | None, rng: random.Random, settings: ExpertSettings) -> Trajectory:
    """One episode of the expert under a skill, its noise independent of the skill."""
    goal = parse_goal(task.goal)
    env = bench.make_env()
    observation = env.reset(task)
    expert = settings.expert(goal, observation.text, skill, rng)
    noise = rng.choice(list(settings.noise))
    steps, success = [], False
    for _ in range(settings.max_steps):
        command, thought = expert.act()
        random_action = rng.random() < noise
        if random_action:
            command, thought = expert.mistake(observation, rng)
        result = env.step(command)
        expert.see(command, result.observation.text)
        steps.append(Step(observation, "", reply_of(command, thought), Action(command, True), reward=result.reward))
        steps[-1].info = {"random": random_action}
        observation, success = result.observation, result.success
        if result.done:
            break
    reason = StopReason.DONE if success else StopReason.HORIZON
    return Trajectory(task, steps, reason, success, 10.0 * success, final_observation=observation)


_FOREIGN = ("armchair 1", "bed 1", "cabinet 3", "countertop 2", "desk 1", "drawer 3", "fridge 1", "shelf 3", "sofa 1")


def random_command(observation: Observation, goal: Goal, places: Sequence[str], rng: random.Random) -> str:
    """A mistake: half of the time one that the room admits, else one that is likely to have no effect at all."""
    if rng.random() < 0.5:
        return rng.choice([action for action in observation.admissible_actions if action != "help"])
    place = rng.choice(list(places))
    return rng.choice(
        [
            f"go to {rng.choice(_FOREIGN)}",
            f"open {place}",
            f"take {goal.object} 1 from {place}",
            f"move {goal.object} 1 to {place}",
        ]
    )


def reply_of(command: str, thought: str = "") -> str:
    """What the policy answers: both tags, and the stage of its plan as the thought."""
    return f"<think>{thought}</think><action>{command}</action>"


def messages_of(bench: Benchmark, trajectory: Trajectory, skill: str | None) -> list[dict]:
    """The dialogue of an episode in the transcript context; `random` marks replies that were not the expert's choice."""
    messages = []
    for index, step in enumerate(trajectory.steps):
        view = View(trajectory.task, step.observation, step_number=index + 1, skill=skill)
        text = bench.prompt(view) if index == 0 else bench.turn(replace(view, skill=None))
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": step.reply, "random": step.info.get("random", False)})
    return messages


class DialogueMaker:
    """Expert dialogues over the tasks of a benchmark, with every kind of skill. Seeded; endless by `make(index)`."""

    def __init__(self, bench: Benchmark, tasks: Sequence[Task], seed: int = 0, settings: ExpertSettings | None = None):
        self.bench = bench
        self.tasks = list(tasks)
        self.settings = settings or ExpertSettings()
        self.seed = seed
        self.analyze = RuleAnalyzer()

    def make(self, index: int) -> Dialogue:
        """The `index`-th dialogue, the same whoever asks and whenever."""
        rng = random.Random(f"{self.seed}/{index}")
        task = self.tasks[rng.randrange(len(self.tasks))]
        if rng.random() < self.settings.reading:
            return self.reading(task, rng)
        shares = self.settings.shares
        wanted = rng.choices(list(shares), weights=list(shares.values()))[0]
        skill = self.skill_of(wanted, task, rng)
        trajectory = play(self.bench, task, skill, rng, self.settings)
        return Dialogue(trajectory, messages_of(self.bench, trajectory, skill), wanted if skill else "none", skill)

    def reading(self, task: Task, rng: random.Random) -> Dialogue:
        """A log of an episode and what it teaches, in plain words: the summary, and the skill on a line of its own.

        Looking things up in a log is learned here; what an analysis has to look like is left to stage 1.
        """
        from .analysis import analysis_prompt

        episode = play(self.bench, task, None, rng, replace(self.settings, noise=self.settings.reading_noise))
        log = analysis_prompt(episode, style="compact").split("\n", 1)[1]
        skill = self.analyze(episode)
        messages = [
            {"role": "user", "content": f"{READING_REQUEST}\n{log}"},
            {"role": "assistant", "content": f"{skill.summary}\n{skill.text}" if skill else ""},
        ]
        return Dialogue(episode, messages, "reading")

    def skill_of(self, wanted: str, task: Task, rng: random.Random) -> str | None:
        """A skill of one of `SKILL_KINDS` for a task; None when this kind cannot be had here."""
        if wanted == "none":
            return None
        if wanted == "useless":
            return rng.choice(USELESS_SKILLS)
        if wanted == "order":
            return plan_skill(parse_goal(task.goal))
        if wanted == "place":
            return place_skill(task)
        if wanted == "other":
            others = [self.tasks[rng.randrange(len(self.tasks))] for _ in range(8)]
            task = next((other for other in others if other.goal != task.goal), others[0])
        episode = play(self.bench, task, None, rng, self.settings)
        own = self.analyze(episode)
        if own is None or wanted != "wrong":
            return own.text if own else None
        return wrong_skill(own.text, episode, parse_goal(task.goal), rng) or wrong_place_skill(self.bench, task, rng)


def walkthrough_episode(bench: Benchmark, task: Task) -> Trajectory:
    """The task's own walkthrough as an episode."""
    env = bench.make_env()
    observation, steps, success = env.reset(task), [], False
    for command in task.payload["walkthrough"]:
        result = env.step(command)
        steps.append(Step(observation, "", reply_of(command), Action(command, True), reward=result.reward))
        observation, success = result.observation, result.success
    reason = StopReason.DONE if success else StopReason.HORIZON
    return Trajectory(task, steps, reason, success, 10.0 * success, final_observation=observation)


def right_skill(bench: Benchmark, task: Task) -> Skill:
    """The rule-based analysis of the task's own walkthrough: the best skill an episode can teach."""
    skill = RuleAnalyzer()(walkthrough_episode(bench, task))
    if skill is None:
        raise ValueError(f"the walkthrough of task {task.id!r} teaches nothing; is it empty?")
    return skill


def wrong_place_skill(bench: Benchmark, task: Task, rng: random.Random) -> str | None:
    """The right skill with every place of the wanted objects swapped for another one of the room."""
    episode = walkthrough_episode(bench, task)
    return wrong_skill(RuleAnalyzer()(episode).text, episode, parse_goal(task.goal), rng)


def vocabulary_texts(maker: DialogueMaker, dialogues: int) -> list[str]:
    """What the tokenizer's words are counted on: dialogues with all kinds of skill, analyses and their
    prompts, every number up to 30."""
    from .analysis import analysis_prompt

    texts = [SKILL_TITLE, SKILL_LINE, *USELESS_SKILLS, *(f" {number}" for number in range(31))] * 3
    for index in range(dialogues):
        dialogue = maker.make(index)
        texts += [message["content"] for message in dialogue.messages]
        texts.append(analysis_prompt(dialogue.trajectory, style="compact"))
        skill = maker.analyze(dialogue.trajectory)
        if skill is not None:
            texts.append(json.dumps({"episode_summary": skill.summary, "episode_skill": skill.text}))
    return texts


__all__ = [
    "Advice",
    "Dialogue",
    "DialogueMaker",
    "Expert",
    "ExpertSettings",
    "SKILL_KINDS",
    "TinyArchitecture",
    "make_model",
    "make_tokenizer",
    "place_skill",
    "plan_skill",
    "read_skill",
    "right_skill",
    "vocabulary_texts",
    "walkthrough_episode",
    "wrong_place_skill",
    "wrong_skill",
]
