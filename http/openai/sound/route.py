# SPDX-License-Identifier: Apache-2.0
"""Sound in and out: recordings in chats, answers that are spoken, and the endpoints of speech and transcription."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from sanic import HTTPResponse, Request
from sanic.response import raw
from sanic.response import text as text_response

from pontil.http.access.endpoint import Endpoint
from pontil.http.fields.audio_output import AudioOutput
from pontil.http.fields.picture import LinkedPicture, Picture
from pontil.http.fields.recording import HeardMedia, MediaPart, Recording
from pontil.http.fields.sampling import SEED_BITS, mint_seed
from pontil.http.intake.body import GENERATION_ERRORS, BodyReader
from pontil.http.intake.caller_turns import CALLER, RETRY_SECONDS
from pontil.http.intake.served_model import ServedModel
from pontil.http.openai.chat.prompt import MAX_MEDIA, ChatPrompt
from pontil.http.openai.chat.request import ChatRequest
from pontil.http.openai.sound.linked_pictures import LinkedPictures
from pontil.http.openai.sound.shown_media import ShownMedia
from pontil.http.openai.sound.sound_reply import reply_sound
from pontil.http.openai.sound.speech_request import SPEECH, read_speech
from pontil.http.openai.sound.spoken_shape import SpokenForm, spoken_form
from pontil.http.openai.sound.transcription_request import TRANSCRIPTION, read_transcription
from pontil.http.stream.receipts import check_no_receipt
from pontil.http.stream.reply import KeepAnswer, ReplyFormat, reply
from pontil.http.stream.reply_schema import SOUND_FILE, TRANSCRIBED
from pontil.http.stream.reply_shape import ChatShape
from pontil.runtime.config.web_address import MediaHosts
from pontil.runtime.errors import ModelError, RequestError, Unavailable
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.generation import PromptWork
from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.stages.graph.catalog import GraphModel
from pontil.runtime.stages.graph.medium import IMAGE, SOUND
from pontil.runtime.stages.media.reader import MediaForms, MediaReader, media_forms
from pontil.runtime.stages.media.web_fetcher import WebFetcher
from pontil.runtime.stages.runs.entry import RunEntry, runs_of

VOICE = "voice"
# Bytes of recordings that may wait for their text, beside the first.
MOST_HELD = 64 << 20
EXAMPLE = "launch --model speech-demo starts one"


class SoundRoutes:
    """Handlers and helpers over one proxy, whose model may have no stage for sound: then each refuses by name."""

    def __init__(self, proxy: Proxy, model: ServedModel, bodies: BodyReader) -> None:
        self.proxy, self.model, self.bodies = proxy, model, bodies
        self.held = SharedRoom(MOST_HELD)
        self.linked = LinkedPictures(WebFetcher(MediaHosts(proxy.config.allowed_media_domains)), self.held)
        # Opened by the first recording or image for a model that encodes them.
        self.reader: MediaReader | None = None

    @property
    def runs(self) -> RunEntry:
        return runs_of(self.proxy)

    @property
    def graph(self) -> GraphModel | None:
        return None if self.proxy.graph is None else self.runs.graph

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The audio API."""
        return (
            Endpoint("POST", "/v1/audio/speech", self.speech, "The sound of a text.", SOUND_FILE, SPEECH,
                     errors=GENERATION_ERRORS, content_type="audio/wav"),
            Endpoint("POST", "/v1/audio/transcriptions", self.transcriptions, "The text of a recording.",
                     TRANSCRIBED, TRANSCRIPTION, errors=GENERATION_ERRORS, body_type="multipart/form-data"),
        )  # fmt: skip

    async def speech(self, request: Request) -> HTTPResponse | None:
        check_no_receipt(request, "speech")
        ignored_fields = self.bodies.ignored(request)
        speech_request = await self.bodies.read(request, partial(read_speech, ignored=ignored_fields))
        self.model.check(speech_request.model)
        ticket = speech_request.handling.complete(request.ctx.ticket, share_prefixes=self.proxy.config.share_prefixes)
        graph = self.speaking("input")
        if graph.audio_needs_states:
            raise RequestError(
                f"the model {self.model.name!r} speaks its own answers and no given text: send a chat with modalities "
                '["text", "audio"] to /v1/chat/completions',
                param="model",
                code="unsupported_parameter",
            )
        options = self.options(graph, speech_request.voice, VOICE, request)
        self.proxy.admissions.check_limits(ticket)
        seed = mint_seed() if speech_request.seed is None else speech_request.seed % (1 << SEED_BITS)
        stream = self.runs.speak(ticket, speech_request.text.encode("utf-8", "replace"), options, seed)
        return await reply_sound(request, stream, speech_request.form, graph.sample_rate, speech_request.stream)

    async def transcriptions(self, request: Request) -> HTTPResponse:
        check_no_receipt(request, "a transcription")
        ignored_fields = self.bodies.ignored(request)
        transcription_request = await self.bodies.read_form(
            request, partial(read_transcription, ignored=ignored_fields)
        )
        self.model.check(transcription_request.model)
        self.hearing("file")
        self.proxy.admissions.check_limits(request.ctx.ticket)
        with self.holding(len(transcription_request.recording.data)):
            transcript = await self.recognised(transcription_request.recording, request.ctx.ticket, beside=False)
        if transcription_request.as_text:
            return text_response(transcript)
        return raw(json.dumps({"text": transcript}, ensure_ascii=False).encode(), content_type="application/json")

    def check(self, chat_request: ChatRequest, request: Request) -> None:
        """Raise RequestError for a chat that needs a stage, or a voice, that the model has not."""
        if chat_request.audio is not None:
            graph = self.speaking("modalities")
            if not graph.answers_in_sound:
                raise RequestError(
                    f"the model {self.model.name!r} reads texts out and answers none in sound: send the text to "
                    "/v1/audio/speech",
                    param="modalities",
                    code="unsupported_parameter",
                )
            self.options(graph, chat_request.audio.voice, "audio.voice", request)
        self.check_media(chat_request.prompt)

    def check_media(self, prompt: ChatPrompt) -> None:
        """Raise RequestError for a recording or an image that the model has no stage for."""
        for medium in prompt.media:
            if isinstance(medium, LinkedPicture):
                self.linked.check(medium)
            if not self.encodes:
                self.hearing(medium.place) if isinstance(medium, Recording) else self.sees_no(medium)

    @property
    def encodes(self) -> bool:
        """True if the model has a stage that encodes recordings and images."""
        return self.graph is not None and self.graph.encoder is not None

    def sees_no(self, picture: Picture | LinkedPicture) -> None:
        """Refuse an image."""
        says = f"{picture.place} is an image, and the model {self.model.name!r} sees none: send text, or ask a server"
        says = f"{says} whose model sees (Qwen3-Omni does)"
        raise RequestError(says, param=picture.place, code="unsupported_parameter")

    def speaking(self, param: str) -> GraphModel:
        """Return the graph of a model that makes sound. Raises RequestError for any other."""
        graph = self.graph
        if graph is None or graph.audio is None:
            says = f"the model {self.model.name!r} makes no sound: ask for text, or ask a server whose model speaks"
            raise RequestError(f"{says} ({EXAMPLE})", param=param, code="unsupported_parameter")
        return graph

    def hearing(self, place: str) -> str:
        """Return the stage that recognises speech. Raises RequestError for a model without one."""
        graph = self.graph
        if graph is None or graph.recognizer is None:
            says = f"{place} is a recording, and the model {self.model.name!r} reads text only: send text"
            says = f"{says}, or ask a server whose model hears ({EXAMPLE})"
            raise RequestError(says, param=place, code="unsupported_parameter")
        return graph.recognizer

    def options(self, graph: GraphModel, voice: str | None, place: str, request: Request) -> dict[str, Any]:
        """Return the options of the stages that speak. Where there is but one voice, a voice has no effect."""
        if voice is None:
            return {}
        if not graph.voices:
            ignored_fields = request.ctx.ignored
            if ignored_fields.strict:
                says = f"{place} is {voice!r:.80}, and {self.model.name!r} has but one voice: leave it out"
                raise RequestError(says, param=place, code="unsupported_parameter")
            ignored_fields.note(place)
            return {}
        voices = {voice_name.lower(): voice_name for voice_name in graph.voices}
        if voice.lower() not in voices:
            says = f"{place} is {voice!r:.80}, and {self.model.name!r} has {', '.join(graph.voices)}"
            raise RequestError(f"{says}: choose one of them", param=place)
        return {VOICE: voices[voice.lower()]}

    async def heard(self, prompt: ChatPrompt, ticket: Ticket) -> HeardMedia:
        """Return what stands for the recordings and images of a prompt."""
        media = prompt.media
        if not media:
            return HeardMedia({})
        if len(media) > MAX_MEDIA:
            says = f"messages hold {len(media)} recordings and images: at most {MAX_MEDIA} may be; leave out older ones"
            raise RequestError(says, param="messages")
        with self.holding(sum(len(medium.data) for medium in media if not isinstance(medium, LinkedPicture))):
            if self.encodes:
                return await self.encoded(media)
            texts = dict[MediaPart, str]()
            for medium in media:
                assert isinstance(medium, Recording), "an image was refused before"
                texts[medium] = await self.recognised(medium, ticket)
        return HeardMedia(texts)

    async def encoded(self, media: Sequence[MediaPart]) -> HeardMedia:
        """Return media as the model's encoder is given them, and what stands for them."""
        reader = self.open_reader()
        texts = {medium: self.text_of(medium, reader.forms) for medium in media}
        async with self.linked.fetched(media) as fetched:
            whole = [fetched[medium] if isinstance(medium, LinkedPicture) else medium for medium in media]
            given = await reader.read([(kind_of(medium), medium.data, medium.place) for medium in whole])
        return HeardMedia(texts, ShownMedia(given, self.runs))

    def open_reader(self) -> MediaReader:
        """Return the reader of media. Raises RequestError where it cannot be had, and Unavailable where no worker
        encodes now."""
        assert self.graph is not None and self.graph.encoder is not None
        self.runs.check_there(self.graph, self.graph.encoder)
        if self.reader is None:
            try:
                forms = media_forms(self.graph.name, self.proxy.config.model_path)
            except ModelError as error:
                raise RequestError(f"this server cannot read recordings or images: {error}", param="messages") from None
            assert forms is not None, "a model with a stage of encoders takes media"
            self.reader = MediaReader(forms)
        return self.reader

    def text_of(self, medium: MediaPart, forms: MediaForms) -> str:
        """Return the text that stands for a medium. Raises RequestError for a kind that the model does not take."""
        kind = kind_of(medium)
        if kind not in forms.kinds:
            says = f"{medium.place}: the model {self.model.name!r} has no encoder of the kind {kind}: send text"
            raise RequestError(says, param=medium.place, code="unsupported_parameter")
        return forms.texts[kind]

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Hold so many bytes of recordings. Raises Unavailable where others hold too much."""
        caller = CALLER.get()
        if not self.held.take(caller, size):
            raise Unavailable("too many recordings are being recognised: try again in a moment", RETRY_SECONDS)
        try:
            yield
        finally:
            self.held.give_back(caller, size)

    async def recognised(self, recording: Recording, ticket: Ticket, beside: bool = True) -> str:
        """Return the text of a recording, which is `beside` the request that it is a part of or a request by itself.
        Errors of the stage that cannot read it name its place."""
        recognition = self.runs.ask(ticket, self.hearing(recording.place), recording.data, beside=beside)
        try:
            return await recognition
        except RequestError as error:
            says = f"{recording.place} cannot be read: {error}"
            raise RequestError(says, status=error.status, param=recording.place, code=error.code) from None

    def form(self, form: type[ChatShape], audio_output: AudioOutput | None) -> Callable[..., ChatShape]:
        """Return the form of a reply, in sound where that was asked for and can be."""
        return spoken_form(form, audio_output, self.graph)

    async def answer(
        self,
        request: Request,
        ticket: Ticket,
        work: PromptWork,
        shape: ReplyFormat,
        chat_request: ChatRequest,
        keep: KeepAnswer,
    ) -> HTTPResponse | None:
        """Submit a chat for an answer in sound, and send the reply, which is kept."""
        media, options, given = chat_request.media, dict[str, Any](), None
        if isinstance(media, ShownMedia):
            options, given = media.given.options(work.prompt), media.given.data
        assert isinstance(shape, SpokenForm) and chat_request.audio is not None
        options |= self.options(self.speaking("modalities"), chat_request.audio.voice, "audio.voice", request)
        stream = self.runs.submit(ticket, work.prompt, work.params, options, given)
        return await reply(request, stream, shape, keep, write=partial(shape.written, stream))


def kind_of(medium: MediaPart) -> str:
    return SOUND if isinstance(medium, Recording) else IMAGE
