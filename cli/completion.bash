# bash completion of @program; to install it:
#   @program --completion bash > ~/.local/share/bash-completion/completions/@program
@function() {
    local line=${COMP_LINE:0:COMP_POINT} word before key value head tail words
    word=${line##*[[:space:]]}
    before=${line%"$word"}
    COMPREPLY=()
    case $word in
    -*) COMPREPLY=($(compgen -W "--help --completion --version" -- "$word")); return ;;
    *=*) ;;
    *)
        case $before in
        *--completion[[:space:]]) words="bash" ;;
        *--help[[:space:]]) words=@topics ;;
        *)
            words=@keys
            compopt -o nospace
            COMPREPLY=($(compgen -W "$words" -- "$word"))
            local IFS=$'\n'
            COMPREPLY+=(@others); return ;;
        esac
        COMPREPLY=($(compgen -W "$words" -- "$word")); return ;;
    esac
    key=${word%%=*} value=${word#*=}
    tail=${value##*[\[,]} head=${value%"${value##*[\[,]}"}
    local IFS=$'\n'
    case $key in
    @runs) COMPREPLY=($(@{function}_runs "$tail"; compgen -f -- "$tail")); compopt -o filenames ;;
    @files) COMPREPLY=($(compgen -f -- "$tail")); compopt -o filenames ;;
    *)
        words=
        case $key in
@values
        esac
        IFS=$' \t\n'
        COMPREPLY=($(compgen -W "$words" -- "$tail")) ;;
    esac
    # readline replaces the text after "=" only, unless the user has changed COMP_WORDBREAKS
    [[ $COMP_WORDBREAKS == *=* ]] || head="$key=$head"
    [[ -z $head ]] || COMPREPLY=("${COMPREPLY[@@]/#/$head}")
}
@{function}_runs() {
    local config
    for config in "$1"*/config.yaml "$1"*/*/config.yaml runs/*/config.yaml; do
        config=${config%/config.yaml}
        [[ -f $config/config.yaml && $config == "$1"* ]] && printf '%s\n' "$config"
    done
}
complete -F @function @program
