r"""A head that the odd part does not show, because ``V_h^T U^T w = 0``: found inside one region.

With a long last token ``y`` and a short ``z``, in ``[y + z; y]`` every neuron stays on its side:
there ``f`` is a sum of heads with values ``v_h`` of that region, which vanish for no head in
general. With ``n_h = W_h y``

    f([y + z; y]) + f([y - z; y]) - 2 f([y]) = sum_h (z^T v_h) tanh(z^T n_h / 2) = E(z),
    f([y + z; y]) - f([y - z; y]) = z^T sum_h v_h.

The ``n_h`` of known heads are known. On circles of ``z`` one further term is searched on a grid,
its ``n`` is fitted in all coordinates, and repeated for a basis of ``y`` gives ``W``; the second
identity gives its sign. Scores are ``z^T W_h y``, so ``y`` may be as long as the digits allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.many_heads.refusal import Reason, RecoveryRefusedError
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.session import Purpose

if TYPE_CHECKING:
    from fiberscope.queries.session import QuerySession

Floats = NDArray[np.float64]

LONGER = 2.0**7
"""Times that ``y`` is longer, and ``z`` shorter, than tokens with scores of order one."""
REGIONS = 6
"""Regions that are looked at for a sign of a hidden head."""
DRAWS = 12
"""Tokens ``y`` that are tried before nothing is found."""
ON_CIRCLE, REACH = 96, 6.0
"""Samples of one circle, and the 2-norm of its ``z`` in units of scores."""
_ANGLES, _STEEPNESSES = 90, np.geomspace(0.3, 12.0, 12)
_EXACT = 256.0
"""Residuals, in units of the rounding of an answer, up to which one region explains the answers."""
_SPREAD = 0.5
_AGREED = 2.0**-8


class _NoFitError(Exception):
    """The answers are not those of one region, or of one hidden head."""


class HiddenHead:
    """Search for one head beside known ones.

    Parameters
    ----------
    session
        The session of the whole oracle.
    W
        Known score matrices, shape ``(K, d, d)``.
    noise
        Errors of the answers.
    size
        2-norm of tokens whose scores are of order one.
    rng
        Draws tokens.
    """

    def __init__(
        self,
        session: QuerySession,
        W: Floats,
        noise: NoiseLevel,
        size: float,
        rng: np.random.Generator,
    ) -> None:
        self.session, self.W, self.noise, self.size, self.rng = session, W, noise, size, rng
        self.width, self.floor = session.width, 0.0

    def find(self) -> tuple[Floats, float]:
        """``W`` of the hidden head, shape ``(d, d)``, and its relative error, estimated.

        Raises
        ------
        RecoveryRefusedError
            If no single further head explains the answers in any region.
        """
        d = self.width
        for _ in range(DRAWS):
            y = self._unit(self.rng.normal(size=d)) * self.size * LONGER
            try:
                first = self.signed(y, self.polished(y, self.searched(y)))
                # Neighbouring tokens: a direction for each, known well enough to be fitted.
                frame = np.linalg.qr(np.column_stack([y, self.rng.normal(size=(d, d - 1))]))[0].T
                tokens, found = [y], [first]
                for row in frame[1:]:
                    moved = y + _SPREAD * float(np.linalg.norm(y)) * row
                    tokens.append(moved)
                    found.append(self.followed(y, moved, first))
                coarse = np.linalg.solve(np.array(tokens), np.array(found)).T
                fine, errors = self.refined(coarse)
                return fine, errors
            except _NoFitError:
                continue
        raise RecoveryRefusedError(
            Reason.HIDDEN_HEADS, f"No single further head fits the answers in {DRAWS} regions."
        )

    def needed(self) -> bool:
        """Whether some region shows more than the known heads explain.

        ``E(z / 2) / (1/2)`` for ``2 y`` is ``E(z)`` for ``y`` unless a neuron changes its side, so
        that crossings are not taken for heads. A region in which all neurons are active, or none,
        hides what the odd part hides: several are asked.
        """
        d = self.width
        for _ in range(REGIONS):
            y = self._unit(self.rng.normal(size=d)) * self.size * LONGER
            directions = self.directions(2 * (len(self.W) + 1) * d + 16)
            try:
                E, z = self.values(y, directions)
                halves = [np.tanh(0.5 * z @ one) for one in self.W @ self.session.representable(y)]
                rest: NDArray[np.float64] = E
                if halves:
                    design = np.concatenate([half[:, None] * z for half in halves], axis=1)
                    rest = np.asarray(E - design @ np.linalg.lstsq(design, E, rcond=None)[0])
                allowed = _EXACT * self.floor
                if float(np.abs(rest).max()) <= allowed:
                    continue
                again, _ = self.values(2 * y, 0.5 * directions)
                if float(np.abs(2 * again - E).max()) <= 8 * allowed:
                    return True
            except _NoFitError:
                continue
        return False

    def signed(self, y: Floats, n: Floats) -> Floats:
        """``n`` or ``-n``: all values together are those of ``f([y + z; y]) - f([y - z; y])``."""
        d = self.width
        E, odd, z = self.both(y, self.directions(2 * (len(self.W) + 2) * d + 16))
        halves = [np.tanh(0.5 * z @ one) for one in (*(self.W @ y), n)]
        columns = np.concatenate([half[:, None] * z for half in halves], axis=1)
        values = np.linalg.lstsq(columns, E, rcond=None)[0].reshape(-1, d)
        total = np.linalg.lstsq(z, odd, rcond=None)[0]
        rest = total - values[:-1].sum(axis=0)
        right, wrong = np.linalg.norm(rest - values[-1]), np.linalg.norm(rest + values[-1])
        if max(right, wrong) < 100 * min(right, wrong):
            raise _NoFitError
        return n if right < wrong else -n

    def directions(self, count: int) -> Floats:
        """Random ``z`` with scores of order one, shape ``(count, d)``."""
        z = self.rng.normal(size=(count, self.width))
        return z * (0.5 * REACH * self.size / LONGER / np.sqrt(self.width))

    def refined(self, coarse: Floats) -> tuple[Floats, float]:
        """Twice over an orthogonal basis of tokens; their difference is the error."""
        d, found = self.width, []
        for _ in range(2):
            basis = np.linalg.qr(self.rng.normal(size=(d, d)))[0] * self.size * LONGER
            rows = []
            for place, row in enumerate(basis):
                for bend in (0.0, 0.0, 0.3, 0.6, 0.6, 0.6):
                    # A region may hide the head: the other side, then some way off.
                    turned = self._unit(self.rng.normal(size=d)) * bend * np.linalg.norm(row)
                    basis[place] = -basis[place] + turned
                    try:
                        rows.append(self.polished(basis[place], coarse @ basis[place]))
                        break
                    except _NoFitError:
                        continue
                else:
                    raise _NoFitError
            coarse = np.asarray(np.linalg.solve(basis, np.array(rows)).T)
            found.append(coarse)
        mean = np.asarray(0.5 * (found[0] + found[1]))
        gap = float(np.linalg.norm(found[0] - found[1]) / np.linalg.norm(mean))
        if gap > _AGREED:
            raise _NoFitError
        return mean, max(gap, self.noise.unit)

    def followed(self, start: Floats, end: Floats, n: Floats) -> Floats:
        """``n`` at another token, in steps where one step is too far."""
        for steps in (1, 4, 16):
            try:
                here = n
                for part in np.arange(1, steps + 1) / steps:
                    here = self.polished(start + part * (end - start), here)
                return here
            except _NoFitError:
                continue
        raise _NoFitError

    def values(self, y: Floats, z: Floats) -> tuple[Floats, Floats]:
        """``E`` at directions ``(n, d)``, and the directions really sent."""
        E, _, z = self.both(y, z)
        return E, z

    def both(self, y: Floats, z: Floats) -> tuple[Floats, Floats, Floats]:
        """``E``, the difference ``f([y + z; y]) - f([y - z; y])``, and the directions sent."""
        y = self.session.representable(y)
        plus = self.session.representable(y + z)
        z = plus - y
        minus = self.session.representable(y - z)
        last = np.repeat(y[None], len(z), axis=0)
        tokens = np.concatenate([np.stack([plus, last], 1), np.stack([minus, last], 1)])
        answers = self.session.ask(tokens, Purpose.RETRIES)
        alone = float(self.session.ask(y[None, None], Purpose.RETRIES)[0])
        if not np.isfinite(answers).all() or not np.isfinite(alone):
            raise _NoFitError
        self.floor = self.noise.unit * max(abs(alone), float(np.abs(answers).max()))
        self.floor += self.noise.absolute
        # y - z was rounded on its own: the two differences agree but for that.
        plus_answers, minus_answers = answers[: len(z)], answers[len(z) :]
        return plus_answers + minus_answers - 2 * alone, plus_answers - minus_answers, z

    def searched(self, y: Floats) -> Floats:
        """``n`` from circles of ``z``: one in the plane of two axes for every further axis."""
        d = self.width
        axes = np.linalg.qr(self.rng.normal(size=(d, d)))[0]
        n = np.zeros(d)
        known = self.W @ y
        for j in range(1, d):
            angles = np.pi * (np.arange(ON_CIRCLE) + self.rng.random()) / ON_CIRCLE
            plane = np.stack([np.cos(angles), np.sin(angles)], axis=1)
            z = plane @ axes[[0, j]] * (REACH * self.size / LONGER)
            E, z = self.values(y, z)
            place = self._on_circle(E, plane, z, known, axes[[0, j]])
            if j == 1:
                n += place @ axes[[0, 1]]
                continue
            # Both circles see the first axis: it carries the sign.
            sign = np.sign(place[0] * (n @ axes[0])) or 1.0
            n += sign * place[1] * axes[j]
        return n

    def _on_circle(
        self, E: Floats, plane: Floats, z: Floats, known: Floats, axes: Floats
    ) -> Floats:
        """``n`` along two axes, up to sign: the best term on a grid of angles and steepnesses."""
        halves = [np.tanh(0.5 * z @ n) for n in known]
        fixed = (
            np.concatenate([half[:, None] * plane for half in halves], axis=1) if halves else None
        )
        basis = np.linalg.qr(fixed)[0] if fixed is not None else np.zeros((len(E), 0))
        rest = E - basis @ (basis.T @ E)
        if float(np.abs(rest).max()) <= _EXACT * self.floor:
            raise _NoFitError  # nothing is hidden here
        best, found = np.inf, np.zeros(2)
        radius = float(np.median(np.linalg.norm(z, axis=1)))
        for angle in np.pi * np.arange(_ANGLES) / _ANGLES:
            direction = np.array([np.cos(angle), np.sin(angle)])
            for steepness in _STEEPNESSES:
                half = np.tanh(0.5 * steepness * (plane @ direction))
                columns = half[:, None] * plane
                columns = columns - basis @ (basis.T @ columns)
                solved, *_ = np.linalg.lstsq(columns, rest, rcond=None)
                left = float(np.sum((rest - columns @ solved) ** 2))
                if left < best:
                    best, found = left, direction * steepness / radius
        return found

    def polished(self, y: Floats, n: Floats) -> Floats:
        """``n`` from random directions, fitted together with the values of all heads."""
        from scipy.optimize import least_squares

        d, heads = self.width, len(self.W) + 1
        E, z = self.values(y, self.directions(2 * (heads + 1) * d + 16))
        known = self.W @ y
        scale = float(np.abs(E).max()) or 1.0
        unit = float(np.linalg.norm(z, axis=1).mean())

        def columns(direction: Floats) -> Floats:
            halves = [np.tanh(0.5 * z @ one) for one in (*known, direction)]
            return np.concatenate([half[:, None] * z for half in halves], axis=1) / unit

        def residuals(x: Floats) -> Floats:
            return np.asarray(columns(x[:d] / unit) @ x[d:] - E / scale)

        def slopes(x: Floats) -> Floats:
            half = np.tanh(0.5 * z @ x[:d] / unit)
            values = z @ x[-d:] / unit
            by_n = (0.5 * (1 - half**2) * values)[:, None] * z / unit
            return np.concatenate([by_n, columns(x[:d] / unit)], axis=1)

        start, *_ = np.linalg.lstsq(columns(n), E / scale, rcond=None)
        solved = least_squares(
            residuals,
            np.concatenate([n * unit, start]),
            slopes,
            method="lm",
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
            max_nfev=200,
        )
        worst = float(np.abs(solved.fun).max()) * scale
        vector = solved.x[-d:]
        if worst > _EXACT * self.floor or not np.linalg.norm(vector) > 0:
            raise _NoFitError
        # E does not know the sign of (n, v).
        fitted = np.asarray(solved.x[:d] / unit)
        return fitted if fitted @ n >= 0 else -fitted

    @staticmethod
    def _unit(x: Floats) -> Floats:
        return np.asarray(x / np.linalg.norm(x))
