"""Train the tiny embedded policy from nothing: `python scripts/train_tiny_policy.py --output DIR`.

Expert dialogues in generated ALFWorld rooms -> tokenizer -> next-token training -> play on held-out rooms -> card.
Seeded; a few minutes on two CPU cores. `--smoke` goes through the same motions in seconds and learns nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from seed_trl.context import ChatFormat
from seed_trl.envs import load_benchmark
from seed_trl.policy import Sampling, TransformersPolicy
from seed_trl.rollout import RolloutSettings, rollout
from seed_trl.tiny import (
    USELESS_SKILLS,
    Dialogue,
    DialogueMaker,
    make_model,
    make_tokenizer,
    right_skill,
    vocabulary_texts,
    wrong_place_skill,
)

CARD = Path(__file__).parent.parent / "model_cards" / "tiny-policy.md"
BENCHMARK_OPTIONS = {"room_size": "small", "prompt_template": "compact", "num_train": 6000}
MAX_STEPS = 15  # horizon of training dialogues and of the evaluation


@dataclass(frozen=True)
class Sample:
    """Token ids of a dialogue, with two weights each.

    `written` is 1 on the replies that the policy is to learn (end of turn included), `read` 1 on every token but those of
    random replies: they are in the dialogue so that the policy learns to go on after a mistake, not to make it.
    """

    ids: list[int]
    written: list[int]
    read: list[int]


def encode(dialogue: Dialogue, chat: ChatFormat) -> Sample:
    """The ids of a dialogue exactly as a rollout would string them together."""
    ids: list[int] = []
    written: list[int] = []
    read: list[int] = []
    last = None
    for message in dialogue.messages:
        if message["role"] == "assistant":
            new = chat.encode(message["content"]) + [chat.tokenizer.eos_token_id]
            last = new[-1]
        elif last is None:
            new = chat.prompt_ids(message["content"])
        else:
            new = chat.turn_ids(message["content"], last)
        ids += new
        random_reply = message.get("random", False)
        written += [int(message["role"] == "assistant" and not random_reply)] * len(new)
        read += [int(not random_reply)] * len(new)
    return Sample(ids, written, read)


def batches(
    maker: DialogueMaker, chat: ChatFormat, size: int, pool: int, rng: random.Random
) -> Iterator[list[Sample]]:
    """Endless batches of dialogues of similar length: `pool` batches are made, sorted by length, and shuffled."""
    index = 0
    while True:
        samples = [encode(maker.make(index + i), chat) for i in range(size * pool)]
        index += size * pool
        samples.sort(key=lambda sample: len(sample.ids))
        cut = [samples[start : start + size] for start in range(0, len(samples), size)]
        rng.shuffle(cut)
        yield from cut


def losses(model, batch: Sequence[Sample], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy of the tokens the policy is to write, and of all it reads, over a batch of dialogues."""
    width = max(len(sample.ids) for sample in batch)
    ids = torch.tensor([sample.ids + [pad] * (width - len(sample.ids)) for sample in batch])
    read = torch.tensor([sample.read + [0] * (width - len(sample.read)) for sample in batch])
    written = torch.tensor([sample.written + [0] * (width - len(sample.written)) for sample in batch])
    # padding is on the right and attention is causal: no mask is needed, and without one attention is faster
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    token_losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    policy = written[:, 1:].float()
    everything = read[:, 1:].float()
    return (token_losses * policy).sum() / policy.sum(), (token_losses * everything).sum() / everything.sum()


def train(model, stream: Iterator[list[Sample]], pad: int, args: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps + 1, pct_start=0.1)
    model.train()
    started, policy_sum, all_sum = time.perf_counter(), 0.0, 0.0
    for step in range(1, args.steps + 1):
        policy_loss, all_loss = losses(model, next(stream), pad)
        # reading is learned from every token: without the second term nothing succeeds after millions of tokens
        (policy_loss + args.auxiliary * all_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        policy_sum, all_sum = policy_sum + policy_loss.item(), all_sum + all_loss.item()
        if step % args.log_every == 0:
            seconds = time.perf_counter() - started
            mean = policy_sum / args.log_every, all_sum / args.log_every
            print(f"step {step:5d}  replies {mean[0]:.3f}  all tokens {mean[1]:.3f}  {seconds:.0f} s", flush=True)
            policy_sum = all_sum = 0.0
    model.eval()


def play_panel(policy, bench, tasks, skills, temperature: float, seed: int) -> list[bool]:
    """Successes of one episode a task under a skill each (None: without)."""
    torch.manual_seed(seed)
    settings = RolloutSettings(
        context="transcript",
        max_steps=MAX_STEPS,
        history_length=0,
        max_prompt_length=None,
        max_response_length=16,
        sampling=Sampling(temperature=temperature),
    )
    return [trajectory.success for trajectory in rollout(bench, tasks, policy, settings, skills=skills)]


def evaluate(policy, bench, episodes: int, seed: int, temperatures=(1.0, 0.4)) -> list[dict]:
    """Success on held-out rooms by kind of skill and temperature: rows of split, skill, temperature, n, success."""
    rows = []
    for split in ("valid_unseen", "valid_seen"):
        tasks = bench.tasks(split)
        random.Random(seed).shuffle(tasks)
        tasks = (tasks * (episodes // len(tasks) + 1))[:episodes]
        rng = random.Random(seed)
        panels = {
            "none": [None] * len(tasks),
            "right": [right_skill(bench, task).text for task in tasks],
            "wrong": [wrong_place_skill(bench, task, rng) for task in tasks],
            "useless": [rng.choice(USELESS_SKILLS) for _ in tasks],
        }
        panels["shuffled"] = panels["right"][1:] + panels["right"][:1]
        for name, skills in panels.items():
            for temperature in temperatures if split == "valid_unseen" else temperatures[:1]:
                won = play_panel(policy, bench, tasks, skills, temperature, seed)
                rows.append(
                    {
                        "split": split,
                        "skill": name,
                        "temperature": temperature,
                        "episodes": len(won),
                        "success": sum(won) / len(won),
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    return rows


def write_card(folder: Path, facts: dict, rows: list[dict]) -> None:
    """Fill the card's template with the numbers of this run."""
    if not CARD.is_file():
        return
    table = ["| split | skill in the prompt | temperature | episodes | success |", "|---|---|---|---|---|"]
    table += [
        f"| {row['split']} | {row['skill']} | {row['temperature']} | {row['episodes']} | {row['success']:.3f} |"
        for row in rows
    ]
    text = CARD.read_text(encoding="utf-8").replace("{{results}}", "\n".join(table))
    for name, value in facts.items():
        text = text.replace("{{" + name + "}}", str(value))
    (folder / "README.md").write_text(text, encoding="utf-8")


def save(model, tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.update(
        do_sample=True,
        temperature=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_new_tokens=16,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # the name that every version of transformers and every other loader knows
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def add_training_arguments(parser: argparse.ArgumentParser, steps: int, lr: float) -> None:
    """What `train` and its callers read; `steps` and `lr` are defaults."""
    parser.add_argument("--output", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps, help="optimizer steps")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=lr, help="peak learning rate of the one-cycle schedule")
    parser.add_argument("--auxiliary", type=float, default=0.3, help="weight of the loss on all tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--log-every", type=int, default=50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_training_arguments(parser, steps=1300, lr=2.5e-3)
    parser.add_argument("--eval-episodes", type=int, default=256, help="episodes for each line of the card; 0: none")
    parser.add_argument("--smoke", action="store_true", help="a handful of steps and episodes")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.batch_size, args.eval_episodes, args.log_every = 4, 4, 6, 2

    started = time.perf_counter()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    bench = load_benchmark("alfworld", **BENCHMARK_OPTIONS)
    maker = DialogueMaker(bench, bench.tasks("train"), seed=args.seed)
    tokenizer = make_tokenizer(vocabulary_texts(maker, 24 if args.smoke else 400))
    model = make_model(tokenizer)
    chat = ChatFormat(tokenizer)
    stream = batches(maker, chat, args.batch_size, 4 if args.smoke else 40, random.Random(args.seed))
    train(model, stream, tokenizer.pad_token_id, args)
    seconds = time.perf_counter() - started
    save(model, tokenizer, args.output)
    rows = []
    if args.eval_episodes:
        rows = evaluate(TransformersPolicy(model, tokenizer), bench, args.eval_episodes, args.seed)
    facts = {
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "vocabulary": len(tokenizer),
        "seconds": f"{seconds:.0f}",
        "threads": args.threads,
        "seed": args.seed,
        "steps": args.steps,
        "batch": args.batch_size,
        "horizon": MAX_STEPS,
        "reading": f"{100 * maker.settings.reading:.0f}",
        "episodes": args.eval_episodes,
    }
    write_card(args.output, facts, rows)
    (args.output / "training.json").write_text(json.dumps({**facts, "results": rows}, indent=2) + "\n")
    print(f"{args.output}: {facts['parameters']} parameters, trained in {seconds:.0f} s")


if __name__ == "__main__":
    main()
