"""The papers' theory as functions: constants of compressors and problems, step sizes, bounds, Lyapunov functions.

Every formula carries the paper that states it. *(recalled)* marks one that was written down from memory and could be
checked neither against the paper nor by a proof.
"""

from thinwire.theory.admissible import Admissible as Admissible
from thinwire.theory.admissible import admissible as admissible
from thinwire.theory.admissible import compressor_of as compressor_of
from thinwire.theory.admissible import covered as covered
from thinwire.theory.admissible import method_recursion as method_recursion
from thinwire.theory.bidirectional import ef21_bc_step as ef21_bc_step
from thinwire.theory.bidirectional import ef21_p_step as ef21_p_step
from thinwire.theory.contraction import bias_and_variance as bias_and_variance
from thinwire.theory.contraction import check_count as check_count
from thinwire.theory.contraction import check_counts as check_counts
from thinwire.theory.contraction import contraction as contraction
from thinwire.theory.contraction import independent_draws as independent_draws
from thinwire.theory.contraction import is_deterministic as is_deterministic
from thinwire.theory.contraction import variance as variance
from thinwire.theory.ef21 import distortion as distortion
from thinwire.theory.ef21 import ef21_nonconvex_bound as ef21_nonconvex_bound
from thinwire.theory.ef21 import ef21_nonconvex_lyapunov as ef21_nonconvex_lyapunov
from thinwire.theory.ef21 import ef21_nonconvex_step as ef21_nonconvex_step
from thinwire.theory.ef21 import ef21_pl_bound as ef21_pl_bound
from thinwire.theory.ef21 import ef21_pl_lyapunov as ef21_pl_lyapunov
from thinwire.theory.ef21 import ef21_pl_step as ef21_pl_step
from thinwire.theory.ef21 import ef21_prox_step as ef21_prox_step
from thinwire.theory.ef21 import ef21_w_step as ef21_w_step
from thinwire.theory.ef21 import rare_features_step as rare_features_step
from thinwire.theory.ef21 import weighted_smoothness as weighted_smoothness
from thinwire.theory.efbv import EFBVConstants as EFBVConstants
from thinwire.theory.momentum import econtrol_eta as econtrol_eta
from thinwire.theory.momentum import ef21_hb_step as ef21_hb_step
from thinwire.theory.momentum import ef21_sgdm_step as ef21_sgdm_step
from thinwire.theory.normalised import normalised_step as normalised_step
from thinwire.theory.normalised import parameter_agnostic_eta as parameter_agnostic_eta
from thinwire.theory.partial import ef21_pp_rho as ef21_pp_rho
from thinwire.theory.partial import ef21_pp_step as ef21_pp_step
from thinwire.theory.recursion import Recursion as Recursion
from thinwire.theory.recursion import markov as markov
from thinwire.theory.recursion import young as young
from thinwire.theory.smoothness import Smoothness as Smoothness
from thinwire.theory.smoothness import least_squares_pl as least_squares_pl
from thinwire.theory.smoothness import linear_model_smoothness as linear_model_smoothness
from thinwire.theory.stochastic import StochasticRecursion as StochasticRecursion
from thinwire.theory.stochastic import ef21_page_step as ef21_page_step
from thinwire.theory.stochastic import ef21_sgd_bound as ef21_sgd_bound
from thinwire.theory.stochastic import ef21_sgd_floor as ef21_sgd_floor
from thinwire.theory.stochastic import ef21_sgd_step as ef21_sgd_step
from thinwire.theory.stochastic import page_probability as page_probability
from thinwire.theory.stochastic import page_variance as page_variance
from thinwire.theory.stochastic import stochastic_markov as stochastic_markov
from thinwire.theory.three_point import clag as clag
from thinwire.theory.three_point import lag as lag
from thinwire.theory.three_point import marina as marina
from thinwire.theory.three_point import marina_probability as marina_probability
from thinwire.theory.three_point import three_point_v1 as three_point_v1
from thinwire.theory.three_point import three_point_v2 as three_point_v2
from thinwire.theory.three_point import three_point_v4 as three_point_v4
from thinwire.theory.three_point import three_point_v5 as three_point_v5
from thinwire.theory.tight import tight_lyapunov as tight_lyapunov
from thinwire.theory.tight import tight_rate as tight_rate
from thinwire.theory.tight import tight_step as tight_step
from thinwire.theory.warning import check_step_size as check_step_size
