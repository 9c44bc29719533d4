"""MLX on CPU: the llama model of mlx-lm with its own generation loops and KV cache."""

import copy
import importlib
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

generation = importlib.import_module("mlx_lm.generate")
mx.set_default_device(mx.cpu)

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


class Llama:
    """`mlx_lm.models.llama.Model` with weights cast to the dtype asked for."""

    def hello(self):
        return {
            "name": "MLX (CPU)",
            "version": f"mlx-lm {mlx_lm.__version__} (mlx {mx.__version__})",
            "precisions": {"float32": "f32", "float16": "f16", "bfloat16": "bf16"},
            "features": ["finish_reason", "batch", "logprobs"],
            "choices": {
                "device": "CPU",
                "finish_reason": "derived by the adapter for one prompt, told by BatchGenerator for several",
            },
        }

    def load(self, model_dir, dtype):
        self.dtype = DTYPES[dtype]
        self.model, self.config = self.read(model_dir)
        self.sessions = {}

    def score(self, tokens):
        return self.forward(tokens, make_prompt_cache(self.model))

    def generate(self, prompts, max_tokens, eos_ids, logprobs):
        rooms = [self.room(prompt, max_tokens) for prompt in prompts]
        if len(prompts) > 1:
            outputs = self.decode_together(prompts, rooms, eos_ids)
        else:
            outputs = [self.decode(prompts[0], rooms[0], eos_ids)]
        if not logprobs:
            for output in outputs:
                del output["logprobs"]
        return outputs

    def decode(self, prompt, room, eos_ids):
        steps = generation.generate_step(mx.array(prompt), self.model, max_tokens=room)
        output = {"tokens": [], "logprobs": [], "finish_reason": "length", "batch_size": 1}
        for token, row in steps:
            output["tokens"].append(int(token))
            output["logprobs"].append(float(row[int(token)]))
            if int(token) in eos_ids:
                return {**output, "finish_reason": "stop"}
        return output

    def decode_together(self, prompts, rooms, eos_ids):
        generator = generation.BatchGenerator(self.model, stop_tokens=[[token] for token in eos_ids])
        names = generator.insert([list(prompt) for prompt in prompts], rooms)
        outputs = {name: {"tokens": [], "logprobs": [], "batch_size": 0} for name in names}
        while responses := generator.next_generated():
            for response in responses:
                output = outputs[response.uid]
                output["tokens"].append(int(response.token))
                output["logprobs"].append(float(response.logprobs[response.token]))
                output["batch_size"] = max(output["batch_size"], len(responses))
                output["finish_reason"] = response.finish_reason
        generator.close()
        return [outputs[name] for name in names]

    def speculate(self, draft_dir, prompt, gamma, max_tokens, eos_ids):
        draft, _ = self.read(draft_dir)
        steps = generation.speculative_generate_step(
            mx.array(prompt), self.model, draft, num_draft_tokens=gamma, max_tokens=self.room(prompt, max_tokens)
        )
        output = {"tokens": [], "finish_reason": "length", "num_accepted": 0}
        for token, _, is_drafted in steps:
            output["tokens"].append(int(token))
            output["num_accepted"] += bool(is_drafted)
            if int(token) in eos_ids:
                return {**output, "finish_reason": "stop"}
        return output

    def open(self):
        return self.keep(make_prompt_cache(self.model))

    def extend(self, session, tokens):
        return self.forward(tokens, self.sessions[session])

    def truncate(self, session, num_tokens):
        for layer in self.sessions[session]:
            layer.trim(layer.offset - num_tokens)

    def fork(self, session):
        return self.keep([self.detached(layer) for layer in self.sessions[session]])

    def kv_bytes(self, session):
        held = [layer for layer in self.sessions[session] if layer.keys is not None]
        return sum(array[..., : layer.offset, :].nbytes for layer in held for array in (layer.keys, layer.values))

    def close(self, session):
        del self.sessions[session]

    def read(self, model_dir):
        model, config = load_model(Path(model_dir))
        model.update(tree_map(lambda weight: weight.astype(self.dtype), model.parameters()))
        return model.eval(), config

    def forward(self, tokens, cache):
        logits = self.model(mx.array([list(tokens)]), cache=cache)[0]
        return np.array(logits.astype(mx.float32))

    def detached(self, layer):
        """A layer's cache with arrays of its own: the cache writes into them in place."""
        other = copy.copy(layer)
        if layer.keys is not None:
            other.keys, other.values = mx.array(layer.keys), mx.array(layer.values)
        return other

    def room(self, prompt, max_tokens):
        """mlx-lm itself has no limit of context; with dynamic RoPE it is what the type extends it to."""
        rope = self.config.get("rope_scaling") or {}
        factor = rope["factor"] if rope.get("rope_type") == "dynamic" else 1
        return min(max_tokens, int(self.config.get("max_position_embeddings", 2048) * factor) - len(prompt))

    def keep(self, cache):
        handle = max(self.sessions, default=-1) + 1
        self.sessions[handle] = cache
        return handle
