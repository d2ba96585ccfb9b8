"""Matching the tensors of a file to those of an architecture, whatever release wrote the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from fiberscope.checkpoints.architecture.program import Architecture
from fiberscope.errors import InputError


class Shaped(Protocol):
    """Anything with a shape: a stored tensor's header, an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        ...


@dataclass(frozen=True)
class Matching:
    """Where each tensor of an architecture is stored.

    Attributes
    ----------
    architecture
        The architecture as the file holds it: without optional tensors that the file lacks.
    stored
        Tensor of the architecture -> name in the file.
    copies
        (name of a copy, name of its original), both as stored: tensors that the architecture ties
        and the file holds twice. Whether their values agree is left to whoever reads them; an
        unembedding that disagrees is not tied, whatever the configuration says.
    ignored
        Stored arrays that are no parameters of the class: buffers, and heads of other classes.
    notes
        Sentences about what was not as the class would write it today.
    """

    architecture: Architecture
    stored: Mapping[str, str]
    copies: tuple[tuple[str, str], ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]


def match(
    architecture: Architecture,
    tensors: Mapping[str, Shaped],
    where: str,
    aliases: Mapping[str, str] | None = None,
) -> Matching:
    """Find every tensor of the architecture in a file.

    Names match exactly, with or without the base model's prefix, or as earlier releases wrote them.
    As transformers does, tensors of another class of the same model type are passed over.

    Parameters
    ----------
    architecture
        What the configuration describes.
    tensors
        Stored name -> anything with a shape, and a number format (``dtype``) where it is known.
    where
        The file, for messages.
    aliases
        Further names of stored tensors, from the file's own table: name -> stored name.

    Raises
    ------
    InputError
        If a tensor is missing, unknown, stored under two names that mean the same, not stored in
        floating point, or has a shape that contradicts the configuration; one sentence that names
        the file and the tensor.
    """
    names = _Names(architecture)
    found: dict[str, str] = {}
    ignored, unknown = [], []
    for stored in tensors:
        canonical = names.canonical(stored)
        if canonical is None:
            if names.is_buffer(stored):
                ignored.append(stored)
                continue
            unknown.append(stored)
            continue
        if canonical in found:
            raise InputError(
                f"{where}: the tensors {found[canonical]!r} and {stored!r} are both "
                f"{canonical!r} of {architecture.name}; remove one of them"
            )
        found[canonical] = stored
    for alias, stored in (aliases or {}).items():
        canonical = names.canonical(alias)
        if canonical is not None and stored in tensors:
            found.setdefault(canonical, stored)

    notes: list[str] = []
    if unknown:
        ignored += _of_siblings(architecture, {name: tensors[name] for name in unknown}, where)
        notes.append(
            f"passed over, as {architecture.name} has no such tensors and another class of its "
            f"model type does: {_listed(unknown)}"
        )
    _use_copies_for_originals(architecture, found, notes)
    architecture = _without_missing_options(architecture, found, where, notes)
    for name in architecture.tensors:
        if name not in found:
            raise _missing(architecture, name, where)
    copies = []
    for copy, original in architecture.optional_copies.items():
        if copy in found and found[copy] != found[original]:
            copies.append((found[copy], found[original]))
            notes.append(
                f"{found[copy]} is stored besides {found[original]}, to which the class ties it"
            )
    expected = {name: architecture.tensors[name] for name in architecture.tensors}
    expected |= {
        copy: architecture.tensors[original]
        for copy, original in architecture.optional_copies.items()
        if copy in found
    }
    for name, shape in expected.items():
        _refuse_codes(found[name], tensors[found[name]], where)
        if tuple(tensors[found[name]].shape) != tuple(shape):
            raise _contradiction(
                architecture, found[name], tensors[found[name]].shape, shape, where
            )
    stored_names = {name: found[name] for name in architecture.tensors}
    _refuse_shared(architecture, stored_names, where)
    return Matching(architecture, stored_names, tuple(copies), tuple(ignored), tuple(notes))


class _Names:
    """Finds the architecture's name for a stored name."""

    def __init__(self, architecture: Architecture) -> None:
        self.known = {*architecture.tensors, *architecture.optional_copies}
        self.aliases = architecture.aliases
        self.buffers = architecture.buffers
        self.prefix = architecture.prefix

    def canonical(self, stored: str) -> str | None:
        """The name in the architecture, or None."""
        for name in (stored, *self._renamed(stored)):
            if name in self.known:
                return name
            if not self.prefix:
                continue
            without = name.removeprefix(self.prefix)
            if without in self.known:
                return without
            if self.prefix + name in self.known:
                return self.prefix + name
        return None

    def is_buffer(self, stored: str) -> bool:
        """Whether the name is that of an array which is no parameter."""
        return any(stored == name or stored.endswith(f".{name}") for name in self.buffers)

    def _renamed(self, stored: str) -> Iterable[str]:
        for old, new in self.aliases.items():
            if stored == old or stored.endswith(f".{old}"):
                yield stored.removesuffix(old) + new


LISTED = 12
"""Names that a note gives before it only counts the rest."""


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


def _of_siblings(
    architecture: Architecture, unknown: Mapping[str, Shaped], where: str
) -> list[str]:
    """The unknown tensors, each with a name and shape of another class of the model type.

    Raises
    ------
    InputError
        If one of them has not.
    """
    siblings = [(_Names(sibling), sibling) for sibling in architecture.siblings()]
    for stored, tensor in unknown.items():
        for names, sibling in siblings:
            name = names.canonical(stored)
            if name is None:
                continue
            shape = sibling.tensors[sibling.optional_copies.get(name, name)]
            if tuple(tensor.shape) == tuple(shape):
                break
        else:
            raise _unknown(architecture, stored, where)
    return list(unknown)


def _use_copies_for_originals(
    architecture: Architecture, found: dict[str, str], notes: list[str]
) -> None:
    """A tied tensor that is stored once, but under another of its names, is found there."""
    for copy, original in architecture.optional_copies.items():
        if original not in found and copy in found:
            found[original] = found[copy]
            notes.append(f"{original} is stored as {found[copy]}, to which the class ties it")


def _without_missing_options(
    architecture: Architecture, found: Mapping[str, str], where: str, notes: list[str]
) -> Architecture:
    """Drop optional tensors when the file has none of them."""
    missing = [name for name in architecture.optional if name not in found]
    if not missing:
        return architecture
    if len(missing) < len(architecture.optional):
        raise _missing(architecture, missing[0], where)
    notes.append(f"{architecture.name} is stored without {', '.join(missing)}")
    gone = set(missing)
    return replace(
        architecture,
        tensors={name: s for name, s in architecture.tensors.items() if name not in gone},
        unread=tuple(part for part in architecture.unread if part.view.tensor not in gone),
        optional=(),
    )


def _refuse_codes(stored: str, tensor: Shaped, where: str) -> None:
    """Integers, truth values and unscaled 8-bit floats are codes of weights at best."""
    dtype = str(getattr(tensor, "dtype", ""))
    if dtype.startswith(("int", "uint", "bool")):
        reason = "codes of quantised weights or damage"
    elif dtype.startswith("float8"):
        reason = "quantised weights whose scale is not known"
    else:
        return
    raise InputError(
        f"{where}: the tensor {stored!r} is stored as {dtype}, so it holds {reason}; convert the "
        "file to floating point"
    )


def _refuse_shared(architecture: Architecture, stored: Mapping[str, str], where: str) -> None:
    """Two tensors of the architecture cannot be one tensor of the file."""
    seen: dict[str, str] = {}
    for name, place in stored.items():
        if place in seen:
            raise InputError(
                f"{where}: {seen[place]!r} and {name!r} are stored as one tensor {place!r}, but "
                f"the configuration says that {architecture.name} has both; set "
                "'tie_word_embeddings' to true if they are tied"
            )
        seen[place] = name


def _unknown(architecture: Architecture, stored: str, where: str) -> InputError:
    return InputError(
        f"{where}: the tensor {stored!r} is not part of {architecture.name}; if the file belongs "
        "to another class, name that class first in 'architectures' of its config.json"
    )


def _missing(architecture: Architecture, name: str, where: str) -> InputError:
    shape = architecture.tensors[name]
    head = architecture.head
    if head is not None and head.output.tensor == name and architecture.tokens == shape[0]:
        return InputError(
            f"{where}: the unembedding {name!r} is missing, although the configuration says that "
            "it is separate; set 'tie_word_embeddings' to true if it is the token embedding"
        )
    return InputError(
        f"{where}: the tensor {name!r} of shape {shape}, a part of {architecture.name}, is "
        "missing; use a complete file, or correct the configuration"
    )


def _contradiction(
    architecture: Architecture,
    stored: str,
    shape: tuple[int, ...],
    expected: tuple[int, ...],
    where: str,
) -> InputError:
    same_rank = len(shape) == len(expected)
    differing = [size for axis, size in enumerate(expected) if not same_rank or size != shape[axis]]
    keys = [f"{key} {value}" for key, value in architecture.sizes.items() if value in differing]
    reason = f" ({', '.join(keys)})" if keys else ""
    return InputError(
        f"{where}: the tensor {stored!r} has shape {tuple(shape)}, but the configuration{reason} "
        f"implies {tuple(expected)}; use the configuration that belongs to the file"
    )
