"""Policies: the built-in vision-language-action model, normalization of its inputs and outputs, and guidance of flow
policies. Needs torch.
"""
