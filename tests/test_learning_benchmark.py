"""benchmarks/learning.py: its statistics against numbers worked out by hand, its files, its page."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from seed_trl.envs import load_benchmark
from seed_trl.envs.alfworld.rules import Goal
from seed_trl.tiny import play, right_skill
from seed_trl.types import Action, Observation, Step, StopReason, Task, Trajectory

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def learning():
    return load("learning")


@pytest.fixture(scope="module")
def novice():
    return load("novice")


# ----------------------------------------------------------------------------------------------------------- statistics


def test_area_is_the_mean_height_of_the_curve(learning):
    assert learning.area({0: 0.2, 5: 0.4, 10: 0.2}) == pytest.approx(0.3)
    assert learning.area({0: 0.0, 5: 1.0, 20: 1.0}) == pytest.approx((2.5 + 15) / 20)  # uneven distances
    assert learning.area({10: 0.5, 0: 0.5}) == 0.5
    with pytest.raises(ValueError, match="at least two evaluations, got 1"):
        learning.area({0: 0.2})


def test_final_is_the_mean_of_the_last_two_ratings(learning):
    assert learning.final({0: 0.9, 5: 0.2, 10: 0.4}) == pytest.approx(0.3)


def test_t_interval_is_students(learning):
    low, high = learning.t_interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)))
    assert learning.t_interval([4.0]) == (-math.inf, math.inf)


def test_bootstrap_interval_holds_means_of_resampled_values(learning):
    assert learning.bootstrap_interval([0.25] * 5) == (0.25, 0.25)
    low, high = learning.bootstrap_interval([0.0, 1.0])  # a quarter of all resamples is (0, 0), a quarter (1, 1)
    assert (low, high) == (0.0, 1.0)
    assert learning.bootstrap_interval([1.0, 2.0, 4.0]) == learning.bootstrap_interval([1.0, 2.0, 4.0])
    assert learning.bootstrap_interval([4.0]) == (-math.inf, math.inf)


def test_differences_are_paired_over_the_seeds_that_both_have(learning):
    found = learning.paired({0: 0.5, 1: 0.7, 2: 0.9}, {1: 0.4, 0: 0.4, 7: 0.0})
    assert found.seeds == 2 and found.mean == pytest.approx(0.2)
    assert learning.paired({0: 0.5}, {1: 0.5}) is None


def test_zero_is_excluded_only_by_both_intervals(learning):
    assert learning.estimate([0.10, 0.11, 0.12, 0.10, 0.11]).excludes_zero
    assert learning.estimate([-0.10, -0.11, -0.12]).excludes_zero
    narrow = learning.estimate([0.01, 0.05])  # the bootstrap alone would have it
    assert narrow.bootstrap[0] > 0 > narrow.t[0] and not narrow.excludes_zero
    assert not learning.estimate([0.5]).excludes_zero


def test_a_level_is_reached_between_ratings(learning):
    curve = {0: 0.2, 5: 0.4, 10: 0.3, 15: 0.6}
    assert learning.reached(curve, 0.1) == 0
    assert learning.reached(curve, 0.3) == pytest.approx(2.5)
    assert learning.reached(curve, 0.45) == pytest.approx(12.5)
    assert learning.reached(curve, 0.7) == math.inf


def test_updates_to_level_compares_mean_curves(learning):
    baseline = {0: {0: 0.1, 10: 0.3, 20: 0.5}, 1: {0: 0.3, 10: 0.3, 20: 0.5}}  # mean 0.2 0.3 0.5: ends at 0.4
    assert learning.updates_to_level(baseline, baseline).updates == pytest.approx(15)
    twice = {seed: {0: c[0], 10: 0.6, 20: 0.7} for seed, c in baseline.items()}  # mean 0.2 0.6 0.7
    speed = learning.updates_to_level(twice, baseline)
    assert speed.updates == pytest.approx(5) and speed.seeds == 2
    assert speed.share == pytest.approx(5 / 15)  # the baseline itself is there at 15 of its 20 updates
    assert learning.updates_to_level(baseline, baseline).share_high == 1
    # resampled: seed 0 alone goes 0.1 -> 0.6, seed 1 alone 0.3 -> 0.6, and the level is 0.4 in all
    assert (speed.low, speed.high) == pytest.approx((10 / 3, 6))
    flat = {seed: {0: 0.1, 10: 0.1, 20: 0.1} for seed in (0, 1)}
    assert learning.updates_to_level(flat, baseline).updates == math.inf
    assert learning.updates_to_level({7: flat[0]}, baseline) is None


def test_a_baseline_that_did_not_rise_has_no_level_to_reach(learning):
    risen = {seed: {0: 0.2, 10: 0.9, 20: 0.9} for seed in (0, 1)}
    sunk = {seed: {0: 0.4, 10: 0.3, 20: 0.3} for seed in (0, 1)}
    assert learning.updates_to_level(risen, sunk) is None
    half = {0: {0: 0.1, 10: 0.5, 20: 0.5}, 1: sunk[1]}  # resampled, seed 1 alone has none
    assert learning.updates_to_level(risen, half).high == math.inf


# ---------------------------------------------------------------------------------------------------------- diagnostics

INTRO = "You are in the middle of a room. Looking quickly around you, you see a desk 1, a drawer 1, a shelf 1."
EPISODE = [
    ("go to desk 1", "On the desk 1, you see nothing.", "search, not found"),
    ("open shelf 1", "Nothing happens.", "no effect"),
    ("go to drawer 1", "On the drawer 1, you see a mug 2.", "search, found"),
    ("take mug 2 from drawer 1", "You pick up the mug 2 from the drawer 1.", "take, wanted"),
    ("go to shelf 1", "On the shelf 1, you see a pen 1.", "carry"),
    ("move mug 2 to shelf 1", "You move the mug 2 to the shelf 1.", "place"),
    ("take pen 1 from shelf 1", "You pick up the pen 1 from the shelf 1.", "take, other"),
    ("look", "You are facing the shelf 1.", "other"),
]


def an_episode() -> Trajectory:
    texts = [INTRO, *(answer for _, answer, _ in EPISODE)]
    steps = [Step(Observation(text), "", "", Action(command, True)) for (command, *_), text in zip(EPISODE, texts)]
    task = Task("t", "f", "train", "Your task is to: put a mug in shelf.")
    return Trajectory(task, steps, StopReason.HORIZON, False, 0.0, final_observation=Observation(texts[-1]))


def test_actions_are_told_apart_by_what_they_did(learning):
    assert learning.action_kinds(an_episode()) == [kind for *_, kind in EPISODE]


def test_tokens_of_a_reply_are_told_apart(learning):
    pieces = ["<think>", "heat", " mug", "</think>", "<action>", "go", "</action>", "<|im_end|>"]
    assert learning.token_classes(pieces) == "format thought thought format format action format format".split()
    assert learning.token_classes(["<action>", "go", "</action>"]) == ["format", "action", "format"]
    assert learning.token_classes(["go", " there"]) == ["action", "action"]


def test_shifts_are_summed_by_class_of_token_and_kind_of_action(learning):
    import torch

    words = ["<action>", "go", " there", "</action>", "answer", "open"]
    row = SimpleNamespace(
        opd_tokens=5,
        teacher_logps=torch.tensor([0.5, -1.0, 0.25, 0.0, 9.0, 2.0]),
        row=SimpleNamespace(
            trajectory=0, completion_ids=range(6), loss_mask=[1, 1, 1, 1, 0, 1], sampler_logps=[0.0] * 6
        ),
    )
    episode = an_episode()
    episode.steps = episode.steps[:2]
    episode.final_observation = Observation(EPISODE[1][1])
    classes, kinds, whole = {}, {}, {}
    learning.note_rows([episode], [row], words.__getitem__, 5.0, classes, kinds, whole)
    assert {name: (s.count, s.shift, s.shift_abs) for name, s in classes.items()} == {
        "format": (2, 0.5, 0.5),
        "action": (3, 1.25, 3.25),  # the second reply has no tags: it is an action as a whole
    }
    assert {name: (s.count, s.shift) for name, s in kinds.items()} == {
        "search, not found": (1, -0.75),
        "no effect": (1, 2.0),
    }
    assert {name: s.shift for name, s in whole.items()} == {"search, not found": -0.25, "no effect": 2.0}
    assert classes["format"].gate == pytest.approx(1 / (1 + math.exp(-2.5)) + 0.5)


# --------------------------------------------------------------------------------------------------------------- novice

HOT_MUG = Goal("mug", "shelf", process="heat")


@pytest.mark.parametrize(
    "skill, told",
    [
        ("The mug 1 was on desk 1. Take it, heat it, then move it to a shelf.", HOT_MUG),
        ("Order that worked: take mug 1 from desk 1, cool mug 1 with fridge 1, go to bed 1, move mug 1 to bed 1.",
         Goal("mug", "bed", process="cool")),
        ("Find the mug, take it and move it to a sofa.", Goal("mug", "sofa")),
        ("Move one mug to the shelf, then the other.", Goal("mug", "shelf")),
        ("The mug 1 was on desk 1. Take it and use the desklamp.", Goal("mug", "desklamp", look=True)),
        # places alone, warnings, and advice about other things are no order
        ("The mug 1 was in cabinet 2.", None),
        ("No mug in desk 1: search elsewhere. Do not repeat move mug 1 to shelf 1.", None),
        ("The pen 1 was on desk 1. Take it, cool it, then move it to a bed.", None),
        (None, None),
    ],
)  # fmt: skip
def test_what_a_skill_tells_a_novice(novice, skill, told):
    assert novice.told_goal(skill, HOT_MUG) == told


def test_a_wrong_order_names_a_place_that_is_not_asked_for(novice):
    places, rng = ["desk 1", "shelf 1", "shelf 2", "bed 1"], random.Random(0)
    right = "Order that worked: take mug 1 from desk 1, go to shelf 2, move mug 1 to shelf 2."
    for _ in range(8):
        told = novice.told_goal(novice.wrong_order(right, HOT_MUG, places, rng), HOT_MUG)
        assert told.target in ("desk", "bed")
    look = Goal("mug", "desklamp", look=True)
    assert novice.told_goal(novice.wrong_order("Take the mug and use the desklamp.", look, places, rng), look).target in (
        "desk", "bed", "shelf",
    )  # fmt: skip


def test_only_the_content_of_a_skill_helps_a_novice(novice):
    bench = load_benchmark("alfworld", room_size="small", prompt_template="compact", num_train=120)
    tasks, settings = bench.tasks("train"), novice.NoviceSettings()
    dialogues = novice.NoviceDialogues(bench, tasks, 0, settings)

    def success(kind: str) -> float:
        rng = random.Random(1)
        skills = [right_skill(bench, t).text if kind == "right" else dialogues.skill_of(kind, t, rng) for t in tasks]
        return sum(play(bench, t, skill, rng, settings).success for t, skill in zip(tasks, skills)) / len(tasks)

    none = success("none")
    assert 0.1 < none < 0.6
    assert success("right") > 0.85
    assert success("wrong") < none and abs(success("useless") - none) < 0.15
    assert none + 0.1 < success("order") < 0.95


# ---------------------------------------------------------------------------------------------------------------- files


def hand_made(learning, folder: Path, arm: str, seed: int, values, cold=None, **setting) -> Path:
    """The file of a run with these ratings at updates 0, 5, 10 ..."""
    chosen = learning.Setting(updates=10, **setting)
    record = {
        "arm": arm,
        "seed": seed,
        "inputs": {"recipe": "demo/seed", "line": chosen.line(arm, seed), "start": "abc"},
        "setting": vars(chosen) | {"arm": dict(learning.ARMS[arm].options)},
        "curves": {
            "1": {5 * i: value for i, value in enumerate(values)},
            "0.4": {5 * i: value for i, value in enumerate(cold or values)},
        },
        "tokens": {"episodes": 1000 + seed, "analysis": 0, "teacher": 500},
        "seconds": {"updates": 10.0, "whole": 12.0},
        "tokens_by_class": {"action": {"count": 10 * (seed + 1), "shift": 0.5 * seed, "shift_abs": 1.0, "gate": 0.5}},
        "replies_by_kind": {"place": {"count": 2, "shift": 0.4, "shift_abs": 0.4, "gate": 0.9}},
    }
    path = folder / arm / f"seed-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


@pytest.fixture
def runs(learning, tmp_path):
    for seed in range(5):
        bump = 0.002 * seed
        hand_made(learning, tmp_path, "grpo", seed, [0.2, 0.3, 0.4], [0.2, 0.2, 0.2])
        hand_made(learning, tmp_path, "seed-0.1", seed, [0.2, 0.5 + bump, 0.6])
        hand_made(learning, tmp_path, "seed-0.1-shuffled", seed, [0.2, 0.3 - bump, 0.4])
    hand_made(learning, tmp_path, "signed-0.1", 0, [0.2, 0.1, 0.1])
    return tmp_path


def test_the_page_holds_what_the_files_say(learning, runs):
    page = learning.page_text(learning.read_results(runs), None, "page")
    assert "| grpo | 5 | 30.0 % | 35.0 % | 20.0 % | 20.0 % |" in page
    assert "| seed-0.1 | 5 | 45.2 % | 55.2 % | 45.2 % | 55.2 % |" in page
    line = next(line for line in page.splitlines() if line.startswith("| seed-0.1 | +15.2"))
    assert "| +15.4 [" in line, "its own control is 0.2 points under GRPO"
    # GRPO ends at 0.35, half-way between its updates 5 and 10; the other is there at half of its first five updates
    assert line.endswith("| 2.5 [2.4, 2.5] | 33 % [33 %, 33 %] |")
    assert "| grpo | - | - | - | 7.5 [7.5, 7.5] | 100 % [100 %, 100 %] |" in page
    assert "excluding 0: seed-0.1." in page
    assert "those of other tasks: seed-0.1." in page
    assert "the interval excluding 100 %: seed-0.1." in page
    assert "fewer than five seeds beside GRPO: signed-0.1." in page
    # means are weighed by counts: (10 * 0 + 20 * 0.5 + 30 * 1 + 40 * 1.5 + 50 * 2) / 150
    assert "| grpo | action | 150 | +1.3333 | 1.0000 | 0.500 |" in page
    assert "| seed-0.1 | 10 | 1,002 | 0 | 500 |" in page


def test_what_is_quoted_are_the_pages_figures(learning, runs):
    text = learning.summary_text(learning.read_results(runs))
    assert "hindsight to matter: `seed-0.1` +15.2 (+15.0 to +15.4)." in text  # no control, nor an arm of one seed
    assert "skills of other tasks: `seed-0.1` +15.4 (+15.0 to +15.8)." in text
    assert "intervals: seed-0.1; behind: seed-0.1-shuffled." in text


def test_the_readme_and_the_demo_quote_the_page(learning):
    summary = learning.SUMMARY.read_text("utf-8").strip()
    assert summary in (learning.ROOT / "README.md").read_text("utf-8").replace("\n", " ")
    page = learning.PAGE.read_text("utf-8")
    for number in re.findall(r"[+-]\d+\.\d", summary):
        assert number in page


def test_the_page_is_what_the_files_of_its_runs_say(learning):
    results = learning.read_results(learning.RESULTS)
    start = json.loads((learning.RESULTS / "start.json").read_text("utf-8"))
    assert learning.PAGE.read_text("utf-8") == learning.page_text(results, start, learning.PAGE.stem)
    assert learning.SUMMARY.read_text("utf-8") == learning.summary_text(results) + "\n"
    digests = {
        line.rsplit(",", 2)[1]: line.rsplit(",", 1)[1]
        for line in learning.PAGE.with_suffix(".csv").read_text().splitlines()[1:]
    }
    assert digests == {run.file: run.digest for of_arm in results.values() for run in of_arm.values()}
    used = {run.record["inputs"]["start"] for of_arm in results.values() for run in of_arm.values()} | {start["start"]}
    assert used == {learning.weights_digest(learning.RESULTS / "start")}


def test_the_report_writes_page_figure_and_every_point_with_its_file(learning, runs, tmp_path):
    page = tmp_path / "docs" / "page.md"
    learning.report(runs, page)
    lines = page.with_suffix(".csv").read_text().splitlines()
    assert lines[0] == "arm,seed,temperature,update,success,file,sha256"
    assert len(lines) == 1 + 16 * 2 * 3
    assert any(line.startswith("grpo,3,1,10,0.4,grpo/seed-3.json,") for line in lines)
    for figure in ("page.png", "page-arms.png"):
        assert page.with_name(figure).stat().st_size > 1000
    assert "![success by update](page.png)" in page.read_text()


def test_baseline_and_control_are_in_every_panel(learning, runs, tmp_path, monkeypatch):
    drawn = {}
    plot = learning._plot

    def noted(axis, arm, *rest):
        drawn.setdefault(axis, set()).add(arm)
        plot(axis, arm, *rest)

    monkeypatch.setattr(learning, "_plot", noted)
    learning.draw(learning.read_results(runs), tmp_path / "figure.png")
    assert len(drawn) == 4  # two groups at two temperatures
    assert all({"grpo", "seed-0.1-shuffled"} <= arms for arms in drawn.values())


def test_runs_of_different_settings_are_not_mixed(learning, runs):
    hand_made(learning, runs, "opsd-0.1", 0, [0.2, 0.3, 0.4], world="sparse")
    with pytest.raises(ValueError, match="opsd-0.1.seed-0.json was made with other settings"):
        learning.read_results(runs)


def test_an_empty_folder_says_how_to_fill_it(learning, tmp_path):
    with pytest.raises(ValueError, match="learning.py run"):
        learning.read_results(tmp_path)


# ----------------------------------------------------------------------------------------------------------------- runs


def start_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_only_missing_runs_are_done_and_a_failure_is_counted(learning, tmp_path, monkeypatch, capsys):
    start, setting = start_folder(tmp_path), learning.Setting(updates=10)

    def write(arm, seed):
        path = hand_made(learning, tmp_path, arm, seed, [0.2, 0.3, 0.4])
        record = json.loads(path.read_text())
        record["inputs"] = learning.inputs_of(setting, arm, seed, start)
        path.write_text(json.dumps(record))

    write("grpo", 0)
    done = []

    def process(arm, seed, *_):
        done.append((arm, seed))
        if arm == "grpo":
            write(arm, seed)
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({int(arm != 'grpo')})"])

    monkeypatch.setattr(learning, "_start_process", process)
    failed = learning.run_all(["grpo", "seed-0.1"], [0, 1], setting, start, tmp_path, jobs=2)
    assert done == [("seed-0.1", 0), ("grpo", 1), ("seed-0.1", 1)] and failed == 2
    out = capsys.readouterr().out
    assert "1 of 4 runs are done, 3 to do" in out
    assert "seed-0.1, seed 0: FAILED with status 1" in out and "T 1 20 30 40" in out


def test_a_run_of_other_settings_is_not_taken_for_done(learning, tmp_path):
    start = start_folder(tmp_path)
    path = hand_made(learning, tmp_path, "grpo", 0, [0.2, 0.3])
    wanted = learning.inputs_of(learning.Setting(updates=99), "grpo", 0, start)
    with pytest.raises(ValueError, match="other settings; give another --output"):
        learning.finished(path, wanted)


def test_every_arm_is_a_valid_configuration_and_its_control_differs_in_whose_skill_alone(learning, tmp_path):
    from seed_trl.seed_config import SEEDConfig

    for name, arm in learning.ARMS.items():
        SEEDConfig(str(tmp_path), use_cpu=True, bf16=False, **arm.options)
        if arm.control is not None:
            control = dict(learning.ARMS[arm.control].options)
            assert control.pop("skill_assignment") == "shuffled"
            own = {key: value for key, value in arm.options.items() if key not in ("skill_assignment", "skill_source")}
            assert own == {key: value for key, value in control.items() if key != "skill_source"}, name


def test_opsd_is_the_control_without_a_skill():
    """Its gradient, whatever the skill, is that of `seed` under a teacher that sees none."""
    import torch

    from seed_trl.opd import opd_loss

    generator = torch.Generator().manual_seed(0)
    student, teacher = -torch.rand(2, 4, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 5, generator=generator) < 0.7

    def gradient(skill, variant):
        live = student.clone().requires_grad_()
        opd_loss(live, skill, mask, variant=variant)[0].backward()
        return live.grad

    assert torch.equal(gradient(teacher, "opsd"), gradient(student, "seed"))


@pytest.mark.slow
def test_a_run_leaves_both_files(learning, tmp_path):
    from seed_trl.assets import tiny_policy_path

    setting = learning.Setting(updates=2, tasks=2, rollouts=2, panel=4)
    start = tiny_policy_path()
    path = learning.run_one("action-0.1-shuffled", 0, setting, start, tmp_path)
    record = json.loads(path.read_text())
    assert list(record["curves"]["1"]) == list(record["curves"]["0.4"]) == ["0", "2"]
    assert learning.finished(path, learning.inputs_of(setting, "action-0.1-shuffled", 0, start))
    lines = path.with_suffix(".csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["update", "1", "2"]
    assert set(record["at_the_end"]) == {"none", "hindsight"}
    counts = {name: found["count"] for name, found in record["tokens_by_class"].items()}
    assert counts["action"] > 0 and counts["format"] > 0 and record["tokens"]["teacher"] > 0
