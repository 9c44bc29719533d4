"""ONNX Runtime GenAI on CPU: its model builder exports the checkpoint, its Generator runs the graph."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime_genai
from onnxruntime_genai.models.builder import create_model, parse_extra_options
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast


class Llama:
    """The float32 graph of the builder."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="onnxruntime-genai-")
        self.exported = {}

    def hello(self):
        return {
            "name": "ONNX Runtime GenAI",
            "version": onnxruntime_genai.__version__,
            "precisions": {"float32": "f32"},
            "features": ["finish_reason", "logprobs"],
            "choices": {
                "export": "fp32, execution provider cpu; a tokenizer of dummy words",
                "eos": "the builder must be given one; after it the engine's search ends, and the adapter appends "
                "the most likely token itself",
                "padding": "id -1: by default it is the eos",
                "logprobs": "log softmax, by the adapter, of the logits of the graph",
            },
        }

    def load(self, model_dir, dtype):
        if model_dir not in self.exported:
            path = Path(self.folder.name) / str(len(self.exported))
            self.exported[model_dir] = (path, export(Path(model_dir), path))
        path, self.config = self.exported[model_dir]
        self.model = onnxruntime_genai.Model(str(path))
        self.sessions = {}

    def score(self, tokens):
        return self.append(self.generator(), tokens)

    def generate(self, prompts, max_tokens, eos_ids, logprobs):
        return [self.decode(prompt, max_tokens, eos_ids, logprobs) for prompt in prompts]

    def decode(self, prompt, max_tokens, eos_ids, logprobs):
        room = min(max_tokens, self.context_length() - len(prompt))
        generator = self.generator()
        row = self.append(generator, prompt)[-1]
        output = {"tokens": [], "finish_reason": "length", "batch_size": 1, "logprobs": []}
        is_done = generator.is_done()
        while len(output["tokens"]) < room and output["finish_reason"] == "length":
            if is_done:
                token = int(row.argmax())
            else:
                generator.generate_next_token()
                token = int(generator.get_next_tokens()[0])
            output["tokens"].append(token)
            output["logprobs"].append(logprob(row, token))
            if token in eos_ids:
                output["finish_reason"] = "stop"
            elif len(output["tokens"]) < room and (is_done or generator.is_done()):
                row, is_done = self.append(generator, [token])[-1], True
            elif len(output["tokens"]) < room:
                row = generator.get_logits()[0, -1]
        if not logprobs:
            del output["logprobs"]
        return output

    def open(self):
        handle = max(self.sessions, default=-1) + 1
        self.sessions[handle] = self.generator()
        return handle

    def extend(self, session, tokens):
        return self.append(self.sessions[session], tokens)

    def truncate(self, session, num_tokens):
        self.sessions[session].rewind_to(num_tokens)

    def close(self, session):
        del self.sessions[session]

    def bye(self):
        self.folder.cleanup()

    def generator(self):
        parameters = onnxruntime_genai.GeneratorParams(self.model)
        parameters.set_search_options(do_sample=False, max_length=self.context_length(), min_length=0, batch_size=1)
        return onnxruntime_genai.Generator(self.model, parameters)

    def append(self, generator, tokens):
        """Logits [T, V] of new tokens."""
        generator.append_tokens(np.array([list(tokens)], dtype=np.int32))
        return np.array(generator.get_output("logits")[0], dtype=np.float32)

    def context_length(self):
        return self.config.get("max_position_embeddings", 2048)


def export(model_dir, path):
    """Writes the engine's own files. Raises what the builder raises for a model it does not take."""
    config = json.loads((model_dir / "config.json").read_text())
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    if head_dim % 16 != 0:
        raise NotImplementedError("rotated heads of a size that is no multiple of 16")
    source = path.with_name(path.name + "-source")
    shutil.copytree(model_dir, source, dirs_exist_ok=True)
    needed = {"architectures": ["LlamaForCausalLM"], "eos_token_id": config["vocab_size"] - 1}
    (source / "config.json").write_text(json.dumps({**config, **needed}))
    vocabulary = {f"<{token}>": token for token in range(config["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<0>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<0>").save_pretrained(source)
    arguments = (None, str(source), str(path), "fp32", "cpu", str(path) + "-cache")
    options = parse_extra_options(*arguments, [])
    create_model(*arguments, **options)
    # The builder makes the eos the padding, and padding at the end of a prompt is not seen.
    settings_file = path / "genai_config.json"
    settings = json.loads(settings_file.read_text())
    settings["model"]["pad_token_id"] = -1
    settings_file.write_text(json.dumps(settings))
    return config


def logprob(row, token):
    row = row.astype(np.float64)
    return float(row[token] - row.max() - np.log(np.exp(row - row.max()).sum()))
