# SPDX-License-Identifier: Apache-2.0
"""The view that chats have of sound, in recordings and in answers, and of images, which a room that may be left out
serves."""

from collections.abc import Callable
from typing import Protocol

from sanic import HTTPResponse, Request

from pontil.http.access.endpoint import Endpoint, RouteAccess
from pontil.http.access.left_out import LeftOutRoom
from pontil.http.fields.audio_output import AudioOutput
from pontil.http.fields.recording import HeardMedia
from pontil.http.intake.body import BodyReader
from pontil.http.intake.served_model import ServedModel
from pontil.http.openai.chat.prompt import ChatPrompt
from pontil.http.openai.chat.request import ChatRequest
from pontil.http.stream.reply import KeepAnswer, ReplyFormat
from pontil.http.stream.reply_shape import ChatShape
from pontil.runtime.errors import RequestError
from pontil.runtime.foundation.entry_points import entry_point, missing
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import PromptWork
from pontil.runtime.proxy.requests.ticket import Ticket


class Sounds(Protocol):
    """Handlers and helpers over one proxy, whose model may have no stage for sound: then each refuses by name."""

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The audio API."""

    def check(self, chat_request: ChatRequest, request: Request) -> None:
        """Raise RequestError for a chat that needs a stage, or a voice, that the model has not."""

    def check_media(self, prompt: ChatPrompt) -> None:
        """Raise RequestError for a recording or an image that the model has no stage for."""

    async def heard(self, prompt: ChatPrompt, ticket: Ticket) -> HeardMedia:
        """Return the text in the place of each recording and image of a prompt: what was recognised, or what stands for
        its media."""

    def form(self, form: type[ChatShape], audio_output: AudioOutput | None) -> Callable[..., ChatShape]:
        """Return the form of a reply, in sound where that was asked for and can be."""

    async def answer(
        self,
        request: Request,
        ticket: Ticket,
        work: PromptWork,
        shape: ReplyFormat,
        chat_request: ChatRequest,
        keep: KeepAnswer,
    ) -> HTTPResponse | None:
        """Submit a chat for an answer in sound, and send the reply in its form, which is kept."""


class NoSounds:
    """In the place of a room that is left out: chats have text only."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def endpoints(self) -> tuple[Endpoint, ...]:
        names = ("speech", "transcriptions")
        paths = [("POST", f"/v1/audio/{name}", RouteAccess.KEY) for name in names]
        return LeftOutRoom(self.sentence, *paths).endpoints()

    def check(self, chat_request: ChatRequest, request: Request) -> None:
        if chat_request.audio is not None:
            raise RequestError(self.sentence, param="modalities", code="unsupported_parameter")
        self.check_media(chat_request.prompt)

    def check_media(self, prompt: ChatPrompt) -> None:
        for medium in prompt.media:
            raise RequestError(self.sentence, param=medium.place, code="unsupported_parameter")

    async def heard(self, prompt: ChatPrompt, ticket: Ticket) -> HeardMedia:
        return HeardMedia({})

    def form(self, form: type[ChatShape], audio_output: AudioOutput | None) -> Callable[..., ChatShape]:
        return form

    async def answer(
        self,
        request: Request,
        ticket: Ticket,
        work: PromptWork,
        shape: ReplyFormat,
        chat_request: ChatRequest,
        keep: KeepAnswer,
    ) -> HTTPResponse | None:
        raise AssertionError("a chat in sound was refused before")


def open_sounds(proxy: Proxy, model: ServedModel, bodies: BodyReader) -> Sounds:
    if (sentence := missing("sound") or missing("runs")) is not None:
        return NoSounds(sentence)
    sounds: Sounds = entry_point("sound")(proxy, model, bodies)
    return sounds
