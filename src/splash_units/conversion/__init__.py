"""What `splash_units.convert` is made of.

`sites` finds where a network computes an activation, with `tracing` for the calls in a `forward`
and `scanning` for those that could not be traced; `activations` says what each computes and `units`
makes the unit that computes the same, with `fitting` where no unit can exactly; `rewriting` puts
the units in, and `report` tells what was done.
"""
