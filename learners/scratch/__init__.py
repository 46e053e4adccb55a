"""The networks of the essay, written out by hand to be read, one idea a file.

Read them in this order: ``perceptron``, ``layers``, ``recurrent``, ``attention``, ``transformer``, ``experts``, then
``convnets``, ``vit``, ``tokenizer``, ``similarity``, ``gpt``, and ``numpy_gpt``, which is ``gpt`` without torch. Each part names the library's version of itself, and
``tests/learners/scratch/`` shows that the two agree. Tensors have the libraries' names: torchvision's in the
convolutional networks, timm's in the Transformers.
"""
