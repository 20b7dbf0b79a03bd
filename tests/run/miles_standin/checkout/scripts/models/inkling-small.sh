LAYERS="${MODEL_ARGS_NUM_LAYERS:-42}"

MODEL_ARGS=(
    --num-layers $LAYERS
    --disable-bias-linear
)
