"""Deep normalized (and unnormalized) attention: what its function determines, how strongly.

Model, theorems and orders: P. V. Konda, Identifiability and Observability of Deep Normalized
Attention (arXiv 2610.09620); dimensions: N. Henry, G. L. Marchetti, K. Kohn, Geometry of Lightning
Self-Attention (arXiv 2408.17221).
"""

from fiberscope.families.deep_attention.architecture import (
    Architecture,
    deep_attention_architecture,
)
from fiberscope.families.deep_attention.dimension import (
    CertifiedDimension,
    certified_dimension,
    kernel_ranks,
)
from fiberscope.families.deep_attention.family import DeepAttention, InputBank
from fiberscope.families.deep_attention.normalizers import (
    NORMALIZERS,
    CustomNormalizer,
    Normalizer,
)
from fiberscope.families.deep_attention.orders import contact_orders, taylor_orders

__all__ = [
    "NORMALIZERS",
    "Architecture",
    "CertifiedDimension",
    "CustomNormalizer",
    "DeepAttention",
    "InputBank",
    "Normalizer",
    "certified_dimension",
    "contact_orders",
    "deep_attention_architecture",
    "kernel_ranks",
    "taylor_orders",
]
