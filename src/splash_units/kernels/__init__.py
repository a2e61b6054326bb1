"""How the equation is computed: literally, on the CPU, on a GPU."""
