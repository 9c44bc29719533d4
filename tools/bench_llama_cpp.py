"""llama.cpp as a peer of tools/bench.py, in its own environment: float32 weights and cache, flash attention off.

    .venvs/llama_cpp/bin/python tools/bench_llama_cpp.py THREADS

The times are those that llama.cpp tells of each request: its forward passes and its choice of tokens, not its server.
"""

import json
import os
import sys
from pathlib import Path

ADAPTER = Path(__file__).resolve().parent.parent / "reference" / "conformance" / "adapters" / "llama_cpp"
PROMPT_TOKENS, WARM_STEPS = 16, 3


def main():
    """One line of answer a line of task, as in bench_peers.serve. The library's own words go to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, str(ADAPTER))
    import adapter

    adapter.THREADS = int(sys.argv[1])
    engine = adapter.Llama()
    for line in sys.stdin:
        task, answer = json.loads(line), {"seconds": [], "tokens": []}
        if task["do"] == "load":
            engine.load(task["directory"], "float32")
        elif task["do"] == "decode" and task["batch"] == 1:
            answer = decode(adapter, engine, task["steps"])
        elif task["do"] == "prefill":
            answer = prefill(adapter, engine, task["tokens"])
        print(json.dumps(answer), file=answers, flush=True)
    # Its servers may hang when they are ended.
    os._exit(0)


def decode(adapter, engine, num_steps):
    """The mean of the steps after the first token, which belongs to the prompt; as often as there are steps."""
    prompt = [position % 40 for position in range(PROMPT_TOKENS)]
    num_tokens = 1 + WARM_STEPS + num_steps
    told = complete(adapter, engine, prompt, num_tokens)
    seconds = told["timings"]["predicted_ms"] / 1e3 / (num_tokens - 1)
    return {"seconds": [seconds] * num_steps, "tokens": [[token] for token in ids(told)]}


def prefill(adapter, engine, num_tokens):
    told = complete(adapter, engine, [position % 40 for position in range(num_tokens)], 1)
    return {"seconds": [told["timings"]["prompt_ms"] / 1e3], "tokens": ids(told)}


def complete(adapter, engine, prompt, num_tokens):
    """Without the prompt cache, and with the least that names the tokens."""
    return adapter.complete(engine.serving(()), prompt, num_tokens, num_probs=1, use_cache=False)


def ids(told):
    return [step["id"] for step in told["choices"][0]["logprobs"]["content"]]


if __name__ == "__main__":
    main()
