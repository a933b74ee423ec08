# SPDX-License-Identifier: Apache-2.0
"""The choice of a weight's form by the tensors that a file has in its place. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.weight_forms import Meaning, Shape, StoredPart, WeightForm

Stored = tuple[Shape, str]
"""The shape and the type of a tensor in a file."""
# The ends of names of a weight's tensors, with their shapes.
Signature = frozenset[tuple[str, Shape]]
MOST_ALIKE = 3
"""Forms of the same tensors that are kept: two with numbers of their own leave a choice open, and one inputs over."""


class WeightScheme(Protocol):
    """A way to store weights. `method` is the name that files have for it."""

    @property
    def method(self) -> str: ...

    def forms(self, shape: Shape) -> list[WeightForm]:
        """The forms that a weight [outputs, inputs] may have."""


@dataclass(frozen=True, slots=True)
class ShapeForms:
    """The forms of weights of one shape, by what their tensors are, and the first with a tensor of each mark."""

    by_parts: Mapping[Signature, list[WeightForm]]
    by_mark: Mapping[str, WeightForm]
    ends: frozenset[str]

    @classmethod
    def of(cls, forms: list[WeightForm]) -> ShapeForms:
        by_parts: dict[Signature, list[WeightForm]] = {}
        by_mark: dict[str, WeightForm] = {}
        known: dict[frozenset[tuple[str, StoredPart]], set[Meaning | None]] = {}
        for form in forms:
            alike = known.setdefault(frozenset(form.parts.items()), set())
            meaning = None if form.leaves_over else form.meaning
            if meaning not in alike and len(alike) < MOST_ALIKE:
                alike.add(meaning)
                by_parts.setdefault(frozenset((end, part.shape) for end, part in form.parts.items()), []).append(form)
            by_mark.setdefault(form.mark, form)
        return cls(by_parts, by_mark, frozenset(end for form in forms for end in form.parts))

    def fitting(self, stored: Mapping[str, Stored]) -> list[WeightForm]:
        """All forms whose tensors are these, by shape and type. Where there is none, the one to say in a refusal."""
        parts = frozenset((end, shape) for end, (shape, _) in stored.items() if end in self.ends)
        alike = self.by_parts.get(parts, [])
        marked = [form for mark, form in self.by_mark.items() if mark in stored]
        exact = [form for form in alike if all(stored[end][1] in part.kinds for end, part in form.parts.items())]
        return [form for form in exact if not form.leaves_over] or [*alike, *marked][:1]


class FormChoice:
    """Chooses the forms of a file's weights. A scheme's forms are made once for each shape of a weight: a file may name
    many, and has many weights."""

    def __init__(self, scheme: WeightScheme, found: Mapping[str, Stored]) -> None:
        self.scheme = scheme
        self.by_shape: dict[Shape, ShapeForms] = {}
        self.stored: dict[str, dict[str, Stored]] = {}
        for name, one in found.items():
            weight, _, end = name.rpartition(".")
            self.stored.setdefault(weight, {})[end] = one

    def form(self, name: str, shape: Shape) -> WeightForm | None:
        """Return the form of a weight; None if it is not quantized. Raises ModelError."""
        stored = self.stored.get(name.rpartition(".")[0], {})
        if shape not in self.by_shape:
            self.by_shape[shape] = ShapeForms.of(self.scheme.forms(shape))
        fitting = self.by_shape[shape].fitting(stored)
        if len(fitting) > 1:
            raise ModelError(
                f"the tensors of {name} fit several groups of quantization_config.config_groups, which this version "
                "tells apart by their tensors: fetch another version of the model"
            )
        form = next(iter(fitting), None)
        if form is not None and form.leaves_over:
            raise ModelError(
                f"the model has quantization_config with groups of {form.group} inputs (group_size), which do not "
                f"divide the {shape[1]} inputs of {name}: fetch the model again, or another version of it"
            )
        return form
