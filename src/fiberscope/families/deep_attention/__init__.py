"""Deep normalized (and unnormalized) attention: what its function determines, how strongly.

Model, theorems and orders: P. V. Konda, Identifiability and Observability of Deep Normalized
Attention (arXiv 2610.09620); dimensions: N. Henry, G. L. Marchetti, K. Kohn, Geometry of Lightning
Self-Attention (arXiv 2408.17221).
"""

from fiberscope.families.deep_attention.architecture import (
    Architecture,
    deep_attention_architecture,
)
from fiberscope.families.deep_attention.bank_design import (
    DesignedBank,
    designed_bank,
    last_band_constant,
)
from fiberscope.families.deep_attention.banks import (
    ExactOrders,
    SmallestBank,
    exact_orders,
    separates,
    smallest_bank,
    theorem_orders,
)
from fiberscope.families.deep_attention.dimension import (
    CertifiedDimension,
    certified_dimension,
    kernel_ranks,
)
from fiberscope.families.deep_attention.effective import (
    EffectiveParameters,
    StoredNetwork,
    effective_parameters,
    load_network,
)
from fiberscope.families.deep_attention.effective_dimension import closed_form, effective_map_rank
from fiberscope.families.deep_attention.exact_orders import (
    ResiduePath,
    random_residue_path,
    residue_path,
)
from fiberscope.families.deep_attention.family import DeepAttention, InputBank
from fiberscope.families.deep_attention.fiber import FiberResult, classify_fiber
from fiberscope.families.deep_attention.local_evidence import LocalEvidence
from fiberscope.families.deep_attention.normalizers import (
    NORMALIZERS,
    CustomNormalizer,
    Normalizer,
)
from fiberscope.families.deep_attention.orders import contact_orders, taylor_orders
from fiberscope.families.deep_attention.paths import (
    ContactPath,
    matrix_case,
    random_bank,
    random_path,
    scalar_case,
)
from fiberscope.families.deep_attention.plain import PlainDeepAttention
from fiberscope.families.deep_attention.recovery import (
    RecoveredNetwork,
    network_oracle,
    recover,
)

__all__ = [
    "NORMALIZERS",
    "Architecture",
    "CertifiedDimension",
    "ContactPath",
    "CustomNormalizer",
    "DeepAttention",
    "DesignedBank",
    "EffectiveParameters",
    "ExactOrders",
    "FiberResult",
    "InputBank",
    "LocalEvidence",
    "Normalizer",
    "PlainDeepAttention",
    "RecoveredNetwork",
    "ResiduePath",
    "SmallestBank",
    "StoredNetwork",
    "certified_dimension",
    "classify_fiber",
    "closed_form",
    "contact_orders",
    "deep_attention_architecture",
    "designed_bank",
    "effective_map_rank",
    "effective_parameters",
    "exact_orders",
    "kernel_ranks",
    "last_band_constant",
    "load_network",
    "matrix_case",
    "network_oracle",
    "random_bank",
    "random_path",
    "random_residue_path",
    "recover",
    "residue_path",
    "scalar_case",
    "separates",
    "smallest_bank",
    "taylor_orders",
    "theorem_orders",
]
