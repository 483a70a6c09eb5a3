# SPDX-License-Identifier: Apache-2.0
"""Asks a frontend for text with the stock OpenAI client, in every way a user does, and fails on any surprise.

Usage: openai_client.py BASE_URL MODEL
"""

import asyncio
import sys

import openai

TOKENS = 8
PROMPT = " ".join(f"w{n}" for n in range(3, 67))

base_url, model = sys.argv[1:]
settings = {"base_url": f"{base_url}/v1", "api_key": "none", "max_retries": 0}
client = openai.OpenAI(**settings)
messages = [{"role": "user", "content": PROMPT}]

assert model in [served.id for served in client.models.list()]

chat = client.chat.completions.create(model=model, messages=messages, max_tokens=TOKENS)
assert chat.choices[0].finish_reason == "length", chat
assert chat.usage.completion_tokens == TOKENS, chat
assert len(chat.choices[0].message.content.split()) == TOKENS, chat

text = client.completions.create(model=model, prompt=PROMPT, max_tokens=TOKENS)
assert text.choices[0].finish_reason == "length", text
assert text.usage.prompt_tokens == 64, text


def check_stream(chunks, read):
    """Every token came in order, once, and the last chunk with a choice says why the stream ended."""
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    words = "".join(read(choice) or "" for choice in choices).split()
    assert len(words) == TOKENS, chunks
    assert choices[-1].finish_reason == "length", chunks


stream = client.chat.completions.create(model=model, messages=messages, max_tokens=TOKENS, stream=True)
check_stream(list(stream), lambda choice: choice.delta.content)

stream = client.completions.create(model=model, prompt=PROMPT, max_tokens=TOKENS, stream=True)
check_stream(list(stream), lambda choice: choice.text)


async def many():
    """Sixteen requests at once."""
    async with openai.AsyncOpenAI(**settings) as client:
        request = {"model": model, "messages": messages, "max_tokens": TOKENS}
        answers = await asyncio.gather(*(client.chat.completions.create(**request) for _ in range(16)))
    assert all(answer.usage.completion_tokens == TOKENS for answer in answers), answers


asyncio.run(many())

try:
    client.chat.completions.create(model="nobody-serves-this", messages=messages)
except openai.NotFoundError:
    pass
else:
    raise AssertionError("a model that nobody serves was accepted")
