"""The networks written out by hand, one idea a file, checked against the libraries.

Read them in this order: ``layers``, ``attention``, ``transformer``, then ``convnets``, ``vit``,
``gpt``, and ``numpy_gpt``, which is ``gpt`` without torch. ``names`` maps the libraries' weights.
"""
