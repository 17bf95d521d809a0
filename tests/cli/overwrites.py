"""Command lines that would overwrite what they read, or write to one file twice, and what they print; files of bad_files.py."""

SAME = [  # line, the output, what it is already
    ("npu-build good.onnx --hw edge16 -o good.onnx", "-o good.onnx", "the model"),
    ("npu-build good.onnx --hw edge16 -o z.npu --json z.npu", "--json z.npu", "-o"),
    (
        "npu-build good.onnx --hw edge16 --quant good_parameters.yaml -o good_parameters.yaml",
        "-o good_parameters.yaml",
        "--quant",
    ),
    ("npu-build weights.onnx --hw edge16 -o weights.bin", "-o weights.bin", "the weights of the model"),
    ("npu-build good.onnx --hw own.yaml -o own.yaml", "-o own.yaml", "--hw"),
    ("npu-build good.onnx --hw own.yaml --json own.yaml", "--json own.yaml", "--hw"),
    (
        "npu-build good.onnx --hw own.yaml -o z.npu --json ./own_table.yaml",
        "--json own_table.yaml",
        "the instruction table of --hw",
    ),
    ("npu-build good.onnx --hw edge16 --calib good.npz -o good.npz", "-o good.npz", "--calib"),
    ("npu-build good.onnx --hw edge16 --calib feed.py:none -o feed.py", "-o feed.py", "--calib"),
    ("npu-build good.onnx --hw edge16 --calib samples -o samples/a.npy", "-o samples/a.npy", "a file of --calib"),
    (
        "npu-build good.onnx --hw edge16 --dump-after fuse --dump-dir . --json 05-fuse.txt",
        "the dump of fuse 05-fuse.txt",
        "--json",
    ),
    (
        "scripts/evaluate.py good.onnx --hw edge16 --stamps samples --json samples/a.npy",
        "--json samples/a.npy",
        "a file of --stamps",
    ),
    ("npu-sim good.npu --output good.npu", "--output good.npu", "the model"),
    ("npu-sim good.npu --input good.npz --output good.npz", "--output good.npz", "--input"),
    ("npu-sim good.npu --hw own.yaml --trace own.yaml", "--trace own.yaml", "--hw"),
    ("npu-sim good.npu --output t.json --json t.json", "--json t.json", "--output"),
    ("npu-sim good.npu --trace t.json --json t.json", "--trace t.json", "--json"),
    ("npu-dis good.npu -o good.npu", "-o good.npu", "the model"),
    ("npu-dis good.npu --assemble plain_file -o good.npu", "-o good.npu", "the model"),
    ("npu-dis good.npu --assemble plain_file -o plain_file", "-o plain_file", "--assemble"),
    ("reference good.npu --input good.npz --output good.npz", "--output good.npz", "--input"),
    ("reference good.onnx --hw own.yaml --output good.onnx", "--output good.onnx", "the model"),
    ("reference good.onnx --hw own.yaml --output own.yaml", "--output own.yaml", "--hw"),
    ("reference good.onnx --hw own.yaml --output own_table.yaml", "--output own_table.yaml", "the instruction table of --hw"),
    ("reference good.onnx --hw own.yaml --calib good.npz --output good.npz", "--output good.npz", "--calib"),
    (
        "reference good.onnx --hw own.yaml --quant good_parameters.yaml --output good_parameters.yaml",
        "--output good_parameters.yaml",
        "--quant",
    ),
]

OVERWRITES = [(line, f"{output}: is the same file as {other}; it would be overwritten") for line, output, other in SAME]
