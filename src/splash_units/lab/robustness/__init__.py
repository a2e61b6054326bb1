"""Attacks on trained networks, with an account of what was counted."""

from splash_units.lab.robustness.accounting import account as account
from splash_units.lab.robustness.accounting import common_gap as common_gap
from splash_units.lab.robustness.named import ATTACKS as ATTACKS
from splash_units.lab.robustness.named import check_attack as check_attack
from splash_units.lab.robustness.named import describe_attack as describe_attack
from splash_units.lab.robustness.named import make_attack as make_attack
from splash_units.lab.robustness.running import attack as attack
from splash_units.lab.robustness.transferring import transfer as transfer
