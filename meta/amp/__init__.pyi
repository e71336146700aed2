"""Floor 3: mixed precision. `rules.py` is the table of cast rules, `cast_rule.py` what a rule is.

Written by `python -m tools.stubs`.
"""

from meta.amp.cast_rule import always as always
from meta.amp.cast_rule import cast_dtypes as cast_dtypes
from meta.amp.cast_rule import custom as custom
from meta.amp.cast_rule import custom_rules as custom_rules
from meta.amp.cast_rule import generic_cast as generic_cast
from meta.amp.cast_rule import infer as infer
from meta.amp.cast_rule import infer_cast as infer_cast
from meta.amp.cast_rule import never as never
from meta.amp.cast_rule import register_op_cast_rule as register_op_cast_rule
from meta.amp.cast_rule import rule_of as rule_of
from meta.amp.scope import autocast as autocast
from meta.amp.scope import autocast_scope as autocast_scope

