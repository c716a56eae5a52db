"""Policies: the built-in vision-language-action model, normalisation of its inputs and outputs, and guidance of flow
policies. Needs torch.
"""
