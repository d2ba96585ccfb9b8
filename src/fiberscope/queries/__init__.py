"""Oracles that answer questions about a hidden function, and recovery of attention from them."""

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.oracle import Arithmetic, FunctionOracle, Oracle, ball_oracle
from fiberscope.queries.recover import Request, recover_attention
from fiberscope.queries.result import NotOfThisFormError, NotRecoveredError, Recovery
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.transcript import Transcript
from fiberscope.queries.weights_oracle import HeadsOracle

__all__ = [
    "Arithmetic",
    "AttentionHeads",
    "FunctionOracle",
    "HeadsOracle",
    "NotOfThisFormError",
    "NotRecoveredError",
    "Oracle",
    "Purpose",
    "QuerySession",
    "Recovery",
    "Request",
    "Transcript",
    "ball_oracle",
    "recover_attention",
]
