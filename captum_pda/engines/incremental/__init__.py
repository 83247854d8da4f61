"""The engine that recomputes only what a window can change, to be read in this order:

- ``engine``: runs the user's model on a ``PerturbedTensor`` instead of perturbed copies.
- ``tensor``: PyTorch passes every call with such a tensor to ``PassFollower``, which applies the
  rule of that function, or calls the function on whole maps ("goes dense").
- ``rules``: functions of boxes, a file for each family.
- ``boxes``: the places of boxes and their contents.
- ``cache``: results for the unperturbed example, kept until the model writes their arguments.
"""
