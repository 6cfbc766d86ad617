"""Snapshots of a run as other people write them: a writer for each format."""

import json

import numpy as np
import torch
from safetensors.numpy import save_file

RATE, STEPS = 0.1, (0, 10, 20, 30, 40)


def write_npz(folder, step, state):
    np.savez(folder / f"step-{step}.npz", **state)


def write_safetensors(folder, step, state):
    save_file({f"model.{name}": value for name, value in state.items()}, folder / f"step{step}.safetensors")


def write_torch(folder, step, state):
    weights = {f"{name}.weight": torch.tensor(value) for name, value in state.items()}
    torch.save({"state_dict": weights, "epoch": 3}, folder / f"ckpt_{step:05d}.pt")


def write_hugging_face(folder, step, state):
    (folder / f"checkpoint-{step}").mkdir()
    save_file(dict(state), folder / f"checkpoint-{step}" / "model.safetensors")
    (folder / f"checkpoint-{step}" / "config.json").write_text("{}")
    torch.save({"momentum": torch.zeros(3)}, folder / f"checkpoint-{step}" / "optimizer.pt")


def write_parts(folder, step, state):
    inside = folder / f"checkpoint-{step}"
    inside.mkdir()
    parts = {name: f"pytorch_model-{i:05d}-of-00002.bin" for i, name in enumerate(state)}
    for name, part in parts.items():
        torch.save({name: torch.tensor(state[name])}, inside / part)
    (inside / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": parts}))
