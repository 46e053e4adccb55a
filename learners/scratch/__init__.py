"""The essay's networks, built from torch's layers and compared with the libraries' versions.

Read them in this order: ``convnets``, ``transformer``, ``vit``, ``gpt``, and ``numpy_gpt``, which is ``gpt``
without torch. Their tensors are named as torchvision (convnets), timm (ViT) or both (GPT's layers) do.
"""
