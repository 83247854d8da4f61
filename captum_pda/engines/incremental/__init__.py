"""The engine that recomputes only what a window can change. To read in this order:

- ``engine``: puts a ``PerturbedTensor`` through the user's model in place of perturbed copies.
- ``tensor``: PyTorch passes every call with such a tensor to ``PassFollower``, which applies the
  rule of that function, or completes the maps and calls the function itself ("goes dense").
- ``rules``: what a function does to boxes, a file for each family of functions.
- ``boxes``: where boxes lie, and what they hold.
- ``cache``: results for the unperturbed example, kept until the model writes what they depend on.
"""
