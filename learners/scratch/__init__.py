"""The essay's networks, put together by hand from torch's layers and checked against the libraries.

Read them in this order: ``convnets``, ``transformer``, ``vit``, ``gpt``, and ``numpy_gpt``, which is ``gpt``
without torch. Their tensors are named as torchvision (convnets), timm (ViT) or both (GPT's layers) do.
"""
