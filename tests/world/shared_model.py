# SPDX-License-Identifier: Apache-2.0
"""The things that all seeds share: modules with their stand-ins, and a tiny model's configuration and tokenizer."""

import gc
import inspect
import logging
from pathlib import Path

import bounded_answers
import copying
import engine_process
import fairness
import hash_adapters
import hash_stages
import install
import random_runs
import rank_meetings
import served_proxy
import stream_memory
import torch
from engine_process import TinyModel
from routes_once import compile_routes_once
from tiny_llama import write_tiny_llama

from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.tokenizer.tokenizer import load_tokenizer
from pontil.runtime.wire.simulated import thread_events


def read(folder: Path) -> TinyModel:
    """Install the stand-ins for pontil's own classes and make the model."""
    package = Path(str(inspect.getfile(GrammarCompiler))).parents[2]
    assert package == Path(__file__).parents[2], f"this is the code of {package}, and not of this checkout"
    torch.set_num_threads(1)
    thread_events.use_events_for_threads()
    copying.map_peers_of_the_world()
    stream_memory.connect_streams_in_the_world()
    hash_stages.serve_small_models()
    random_runs.keep_whole_runs()
    rank_meetings.meet_in_the_world()
    install.show_failures()
    bounded_answers.answer_in_this_process()
    served_proxy.adapt_protocol_once()
    compile_routes_once()
    served_proxy.read_templates_once()
    served_proxy.leave_pages_seldom()
    engine_process.measure_tiers_at_once()
    served_proxy.read_records_whole()
    served_proxy.die_at_a_body()
    fairness.watch_turns()
    logging.disable(logging.CRITICAL)
    config = write_tiny_llama(folder, max_model_len=1024)
    tokenizer = load_tokenizer(folder)
    hash_adapters.examine_for(folder)
    hash_adapters.write_adapters(folder / "adapters", config)
    made = TinyModel(config, tokenizer, GrammarCompiler(tokenizer, config.vocab_size), folder)
    made.grammars.prepare()
    gc.collect()
    gc.freeze()
    return made
