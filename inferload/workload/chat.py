"""Conversations of people as scripts: each turn adds one message and waits for the answer."""

from random import Random

from inferload.workload.distributions import draw_count
from inferload.workload.messages import SHARED, Message, text_message
from inferload.workload.script import Ask, Reply, Script
from inferload.workload.workloads import Chat


def chat(workload: Chat, index: int, rng: Random) -> Script:
    """Session `index` of a chat workload."""
    plan = []
    for number in range(draw_count(workload.turns, rng)):
        # Drawn for the first turn too, so that all turns take the same random numbers.
        think_time_s = workload.think_time_s.draw(rng)
        prompt_tokens = draw_count(workload.prompt_tokens, rng)
        output_tokens = draw_count(workload.output_tokens, rng)
        plan.append((prompt_tokens, output_tokens, think_time_s if number else 0.0))
    said = system_message(workload)
    for number, (prompt_tokens, output_tokens, think_time_s) in enumerate(plan):
        question = text_message("user", f"text/{index}/{number}", prompt_tokens)
        reply = yield Ask((*said, question), output_tokens, think_time_s)
        if workload.history == "live":
            assert isinstance(reply, Reply)
            said += (question, reply.message())


def system_message(workload: Chat) -> tuple[Message, ...]:
    """The system prompt that all sessions share; nothing where there is none."""
    tokens = workload.system_prompt_tokens
    return (text_message("system", f"{SHARED}system", tokens),) if tokens else ()
