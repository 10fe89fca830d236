"""The policy that `learning.py` starts from: one that does what a skill says and must find out the rest.

    python benchmarks/novice.py --output DIR

The shipped tiny policy is trained on by the same script's loss, on dialogues of another expert. Without advice a `Novice`
searches in no particular order and often has a wrong idea of what the goal asks for: another appliance, a treatment too
many or too few, another place. When its idea comes to nothing it takes up another. A skill that names a place or an
order is followed, right or wrong, and its noise is the same with and without skills. So a right skill helps by its content
alone, a wrong one does not, and all that the skills tell can be found out by reward as well, only later.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from seed_trl.analysis import analysis_prompt
from seed_trl.assets import tiny_policy_path
from seed_trl.context import ChatFormat
from seed_trl.envs import load_benchmark
from seed_trl.envs.alfworld.rules import Goal, kind, parse_goal, receptacles_of
from seed_trl.skill_sft import target_json
from seed_trl.tiny import (
    APPLIANCES,
    Dialogue,
    DialogueMaker,
    Expert,
    ExpertSettings,
    play,
    wrong_place_skill,
)
from seed_trl.types import Observation

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import train_tiny_policy as tiny_script  # noqa: E402

RIGHT_IDEA = 0.25  # how often a novice without advice understands the goal


# ----------------------------------------------------------------------------------------------------- what a skill says

_SENTENCE = re.compile(r"[^.]*\.")
_USE = re.compile(r"\buse (?:the )?([a-z]+)")
_TREAT = re.compile(r"\b(heat|cool|clean) (?:it\b|[a-z]+ \d+ with)")
_MOVE = re.compile(r"\b[Mm]ove (?:it|one [a-z]+|[a-z]+ \d+) to (?:an? |the )?([a-z]+)")


def told_goal(skill: str | None, goal: Goal) -> Goal | None:
    """What a skill says is to be done with the goal's object; None where it says nothing of that object."""
    if not skill or not re.search(rf"\b{goal.object}\b", skill):
        return None
    text = " ".join(s.strip() for s in _SENTENCE.findall(skill) if not s.strip().startswith("Do not"))
    if use := _USE.findall(text):
        return Goal(goal.object, use[-1], look=True)
    moves, treatments = _MOVE.findall(text), _TREAT.findall(text)
    if not moves:
        return None
    return Goal(goal.object, moves[-1], process=treatments[-1] if treatments else None, count=goal.count)


def wrong_order(skill: str, goal: Goal, places: Sequence[str], rng: random.Random) -> str:
    """The same skill with the last place, or the use of the lamp, swapped for a place that the goal does not ask for."""
    others = [place for place in places if kind(place) != goal.target]
    if not others:
        return skill
    other = rng.choice(others)
    if goal.look:
        skill = re.sub(r"\buse [a-z]+ \d+", f"move {goal.object} 1 to {other}", skill)
        return re.sub(r"\buse the [a-z]+", f"move it to a {kind(other)}", skill)
    skill = re.sub(rf"\b(go to|move {goal.object} \d+ to) {goal.target} \d+", rf"\1 {other}", skill)
    return re.sub(rf"\b([Mm]ove (?:it|one {goal.object}) to (?:an?|the)) {goal.target}\b", rf"\1 {kind(other)}", skill)


def wrong_novice_skill(bench, task, rng: random.Random) -> str | None:
    """The analysis of the task's walkthrough with both the object's place and the order wrong."""
    skill = wrong_place_skill(bench, task, rng)
    if skill is None:
        return None
    places = receptacles_of(bench.make_env().reset(task).text)
    return wrong_order(skill, parse_goal(task.goal), places, rng)


# ---------------------------------------------------------------------------------------------------------------- novice


class Novice(Expert):
    """An expert in doing, not in knowing: `goal` is its present idea of what is asked, `true_goal` what is."""

    def __init__(self, goal: Goal, intro: str, skill: str | None, rng: random.Random):
        super().__init__(goal, intro, skill, rng)
        self.true_goal, self.rng = goal, rng
        self.goal = told_goal(skill, goal) or self._idea()

    def _idea(self) -> Goal:
        """The goal, or something like it."""
        goal = self.true_goal
        if self.rng.random() < RIGHT_IDEA:
            return goal
        targets = sorted({kind(place) for place in self.places} - {goal.target})
        other = replace(goal, target=self.rng.choice(targets), look=False)
        present = {kind(place) for place in self.places}
        processes = [verb for verb, appliance in APPLIANCES.items() if appliance in present and verb != goal.process]
        if goal.look or self.rng.random() < 0.5:
            return other
        if goal.process is None:
            return replace(goal, process=self.rng.choice(processes)) if processes else other
        return replace(goal, process=self.rng.choice([None, *processes]))

    def see(self, action: str, text: str) -> None:
        super().see(action, text)
        words, goal = action.split(" "), self.goal
        if text == "Nothing happens.":
            if words[0] == goal.process:  # this thing cannot be treated so
                self._think_again()
            return
        lamp = goal.look and words[0] == "use"
        placed = words[0] == "move" and len(self.placed) >= goal.count and kind(" ".join(words[1:3])) == goal.object
        if lamp or placed:
            self._think_again()

    def mistake(self, observation: Observation, rng: random.Random) -> tuple[str, str]:
        """Half of the time what a policy gets wrong by itself: it takes what is not there, thought included.

        Such thoughts must be in the dialogues, with a right one after them: a policy that never
        saw one taken back clings to it for the rest of the episode.
        """
        if rng.random() < 0.5 or self.here is None or self.holding is not None:
            return super().mistake(observation, rng)
        wanted = self.goal.object
        return f"take {wanted} {rng.choice((1, 1, 2, 3))} from {self.here}", f"take {wanted}"

    def _think_again(self) -> None:
        """The idea is carried out and the episode goes on: it was not what is asked."""
        before = self.goal
        for _ in range(8):
            self.goal = self._idea()
            if self.goal != before:
                break
        self.placed.clear()

    def _search(self) -> str:
        """What the skill names, then any place not searched, what the skill warns of last."""
        if self.here in self.places and self.here not in self.searched:
            return self._at(self.here, f"examine {self.here}", opened=True)
        left = [place for place in self.places if place not in self.searched]
        likely = [place for place in left if place not in self.avoid] or left
        told = [place for place in self.told if place in left]
        if not left:
            self.placed.clear()
            return "look"
        return self._at(told[0] if told else self.rng.choice(likely), "look", opened=True)


# ------------------------------------------------------------------------------------------------------------- dialogues

SHARES = {"none": 0.42, "own": 0.28, "place": 0.06, "order": 0.06, "wrong": 0.1, "other": 0.05, "useless": 0.03}


@dataclass
class NoviceSettings(ExpertSettings):
    """How the novice's dialogues are played."""

    shares: dict[str, float] = field(default_factory=lambda: dict(SHARES))
    reading: float = 0.15
    noise: Sequence[float] = (0.0, 0.15, 0.3)
    expert: type[Expert] = Novice


class NoviceDialogues(DialogueMaker):
    """Dialogues of a novice; its wrong skills are wrong in the place and in the order.

    Among them are analyses as a training asks for them, JSON included. A skill SFT as in the demo would not do: its acting
    turns are those of successful episodes, and half of what a novice has to find out would be learned from them.
    """

    def reading(self, task, rng: random.Random) -> Dialogue:
        episode = play(self.bench, task, None, rng, replace(self.settings, noise=self.settings.reading_noise))
        skill = self.analyze(episode)
        if skill is None:
            return self.reading(task, rng)
        messages = [
            {"role": "user", "content": analysis_prompt(episode, style="compact")},
            {"role": "assistant", "content": target_json(skill)},
        ]
        return Dialogue(episode, messages, "reading")

    def skill_of(self, wanted: str, task, rng: random.Random) -> str | None:
        if wanted == "wrong":
            return wrong_novice_skill(self.bench, task, rng)
        return super().skill_of(wanted, task, rng)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    tiny_script.add_training_arguments(parser, steps=2500, lr=1.5e-3)
    args = parser.parse_args(argv)
    started = time.perf_counter()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    bench = load_benchmark("alfworld", **tiny_script.BENCHMARK_OPTIONS)
    maker = NoviceDialogues(bench, bench.tasks("train"), seed=args.seed, settings=NoviceSettings())
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy_path())
    model = AutoModelForCausalLM.from_pretrained(tiny_policy_path(), dtype=torch.float32)
    stream = tiny_script.batches(maker, ChatFormat(tokenizer), args.batch_size, 40, random.Random(args.seed))
    tiny_script.train(model, stream, tokenizer.pad_token_id, args)
    tiny_script.save(model, tokenizer, args.output)
    print(f"{args.output}: {args.steps} steps in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
