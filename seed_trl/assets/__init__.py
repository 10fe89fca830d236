"""Data that ships with the package."""

from __future__ import annotations

from pathlib import Path


def tiny_policy_path() -> Path:
    """The folder of the tiny embedded policy, as `from_pretrained` takes it.

    Raises:
        FileNotFoundError: the weights are not in this installation; they are made by `scripts/train_tiny_policy.py`.
    """
    folder = Path(__file__).parent / "tiny_policy"
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"{folder} holds no model.safetensors; reinstall seed_trl, or make the policy in a checkout with "
            f"python scripts/train_tiny_policy.py --output {folder}"
        )
    return folder


def learning_summary() -> str:
    """What was measured of the method over several seeds, in a paragraph; written by `benchmarks/learning.py report`."""
    return (Path(__file__).parent / "does_it_help.txt").read_text(encoding="utf-8").strip()


__all__ = ["learning_summary", "tiny_policy_path"]
