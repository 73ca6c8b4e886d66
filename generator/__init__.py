"""YAML -> Spec -> Variant -> KernelPlan -> source text: pure functions, no torch, no GPU."""
