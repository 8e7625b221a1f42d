"""The one door for files from outside: a checked reader for each format.

Every reader bounds counts, sizes and nesting before anything is allocated, executes nothing, and turns whatever goes
wrong into one `InputError` of one line that names the file. Inside a block `with reading(path)` an error need not name
the file itself.

    source   bytes of regular files, and `reading`
    text     JSON, and JSON line by line
    arrays   .npy
    tensors  .safetensors
    pickles  the pickle machine without calls, for EDM's networks and CIFAR-10's batches
    torches  files of torch.save, by the same machine
"""
